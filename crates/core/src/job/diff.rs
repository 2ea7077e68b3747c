//! Decides in which values two definitions differ.

use serde_json::Value;

/// A value that two definitions do not have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Such as `tasks[0].params.command`.
    pub path: String,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

/// Returns the differences of two documents, in the order of their paths: the smallest values that differ.
pub fn differences(before: &Value, after: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", Some(before), Some(after), &mut found);
    found
}

fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Difference>) {
    match (before, after) {
        (Some(before), Some(after)) if before == after => {}
        (Some(Value::Object(one)), Some(Value::Object(other))) => {
            let mut names: Vec<&String> = one.keys().chain(other.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                compare(&path, one.get(name), other.get(name), found);
            }
        }
        (Some(Value::Array(one)), Some(Value::Array(other))) => {
            for index in 0..one.len().max(other.len()) {
                compare(&format!("{path}[{index}]"), one.get(index), other.get(index), found);
            }
        }
        (before, after) => {
            found.push(Difference { path: path.to_owned(), before: before.cloned(), after: after.cloned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_smallest_values_that_differ_are_found() {
        let shown = |before: Value, after: Value| -> Vec<String> {
            let text = |value: Option<Value>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
            let found = differences(&before, &after).into_iter();
            found.map(|one| format!("{}: {} {}", one.path, text(one.before), text(one.after))).collect()
        };
        assert_eq!(shown(json!({"a": 1}), json!({"a": 1})), Vec::<String>::new());
        assert_eq!(
            shown(
                json!({"b": {"x": 1, "y": 2}, "tasks": [{"a": "x"}, {"a": "y"}], "gone": true}),
                json!({"b": {"x": 1, "y": 3}, "tasks": [{"a": "z"}], "new": null}),
            ),
            [
                "b.y: 2 3",
                "gone: true -",
                "new: - null",
                "tasks[0].a: \"x\" \"z\"",
                "tasks[1]: {\"a\":\"y\"} -"
            ]
        );
        assert_eq!(shown(json!({"a": [1]}), json!({"a": {"b": 1}})), ["a: [1] {\"b\":1}"]);
    }
}
