//! Stores keep events for a long time, and older and newer programs read them. The golden files contain every kind of
//! event of each level; a released one is never edited.

use std::collections::BTreeSet;
use std::path::Path;

use downbeat_core::{Change, Event, level};
use serde_json::{Value, json};

fn recorded(level: u32) -> Vec<Value> {
    let path = format!("{}/tests/golden/events/level_{level}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(Path::new(&path)).unwrap_or_else(|_| panic!("there is no {path}"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn read(value: &Value) -> Event {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

#[test]
fn every_kind_of_every_level_is_read_and_written_as_it_was() {
    let mut kinds = BTreeSet::new();
    for level in level::FIRST..=level::LEVEL {
        for value in recorded(level) {
            let event = read(&value);
            assert_eq!(serde_json::to_value(&event).unwrap(), value);
            assert_eq!(event.change.kind(), value["kind"].as_str().unwrap());
            // A level may add fields to kinds of earlier levels.
            assert!(event.change.level() <= level, "{value}");
            assert_eq!(event.change.kind(), Change::KINDS[usize::from(event.change.phase())]);
            kinds.insert(event.change.kind().to_owned());
        }
    }
    assert_eq!(
        kinds,
        Change::KINDS.iter().map(|kind| (*kind).to_owned()).collect(),
        "put new kinds on record"
    );
    assert_eq!(kinds.len(), 40, "a new kind raises LEVEL, unless it came with the level's first release");
}

/// Maps whose names users and nodes choose, so that an added field would be theirs, and closed sets.
const FREE: [&str; 9] =
    ["params", "labels", "capabilities", "requires", "limits", "items", "outputs", "spread", "resets"];

/// Adds an unknown field to the object at index `place`; returns false if there are not that many objects.
fn with_field(value: &mut Value, place: &mut usize) -> bool {
    match value {
        Value::Object(fields) => {
            if *place == 0 {
                fields.insert("from_the_future".to_owned(), json!({"a": [1]}));
                return true;
            }
            *place -= 1;
            fields.iter_mut().any(|(name, field)| !FREE.contains(&name.as_str()) && with_field(field, place))
        }
        Value::Array(items) => items.iter_mut().any(|item| with_field(item, place)),
        _ => false,
    }
}

#[test]
fn fields_that_a_newer_program_adds_are_passed_over() {
    let mut tried = 0;
    for value in (level::FIRST..=level::LEVEL).flat_map(recorded) {
        for place in 0.. {
            let mut newer = value.clone();
            if !with_field(&mut newer, &mut { place }) {
                break;
            }
            assert_eq!(read(&newer), read(&value), "{newer}");
            tried += 1;
        }
    }
    assert!(tried > 30, "{tried}");
}

#[test]
fn an_unknown_kind_is_never_written() {
    let unknown =
        Change::Unknown { name: "x".to_owned(), run: None, at: downbeat_core::Timestamp::UNIX_EPOCH };
    assert!(unknown.level() > level::LEVEL, "no common level reaches it");
    assert!(serde_json::to_string(&unknown).is_err());
    assert!(
        serde_json::from_value::<Change>(
            json!({"kind": "unknown", "name": "x", "at": "1970-01-01T00:00:00Z"})
        )
        .is_err()
    );
}

/// Batches and the feed are cut by these sizes.
#[test]
fn the_estimated_size_of_a_change_is_about_its_size_as_json() {
    let long = "x".repeat(100_000);
    for level in level::FIRST..=level::LEVEL {
        for mut value in recorded(level) {
            // Texts and values of any length count in full.
            for at in ["/reason", "/outcome/error", "/executions/0/params/message", "/outcome/outputs/a"] {
                if let Some(text) = value.pointer_mut(at).filter(|text| text.is_string()) {
                    *text = json!(long);
                }
            }
            let change = read(&value).change;
            let (estimated, exact) = (change.bytes(), downbeat_core::portion::json_bytes(&change));
            let difference = estimated.abs_diff(exact);
            assert!(difference <= 500.max(exact / 10), "{estimated} instead of {exact}: {change:?}");
        }
    }
}
