//! Owns the table of the job file's fields: the name of each, the maps that may have it, its meaning and its schema.
//! The parser's messages, the JSON schema and `docs/job-file.md` are generated from this table. `parse` reads the
//! fields; a test checks every example of the table with the parser.

use serde_json::{Map, Value, json};

/// One field of a job file.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    /// The maps that may have the field.
    pub on: &'static [On],
    /// The manual: the schema's description and the text of the reference page.
    pub help: &'static str,
    /// The JSON schema of its value, with `default` and `examples`.
    pub schema: fn() -> Value,
}

/// The maps of a job file that have fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    Job,
    /// A task directly under the job's `tasks`.
    Task,
    /// A task inside a branch.
    Leaf,
    Branch,
    Target,
    Placement,
    Preference,
    Spread,
    Rollout,
    Approve,
    Retry,
    ForEach,
    Cache,
    Schedule,
    CatchUp,
    Exclude,
    Constraints,
    Hook,
    Action,
    /// An entry of `triggers`.
    Trigger,
    HttpTrigger,
    JobTrigger,
    EventTrigger,
    Webhook,
    Slack,
    Email,
}

/// Creates rows of the table: `[maps] "name": "meaning" => {schema},`.
macro_rules! fields {
    ($([$($on:ident),+] $name:literal: $help:literal => $schema:tt,)+) => {
        pub(super) const FIELDS: &[super::Field] = &[$(super::Field {
            name: $name,
            on: &[$(super::On::$on),+],
            help: $help,
            schema: || serde_json::json!($schema),
        }),+];
    };
}

mod job;
mod life;
mod message;
mod part;
mod task;
mod trigger;

/// Returns all fields, in the order of the reference page.
pub fn fields() -> impl Iterator<Item = &'static Field> {
    [job::FIELDS, task::FIELDS, part::FIELDS, life::FIELDS, message::FIELDS, trigger::FIELDS]
        .into_iter()
        .flatten()
}

/// Returns the fields of these maps.
fn on(maps: &[On]) -> impl Iterator<Item = &'static Field> {
    fields().chain(message::FIELDS).filter(move |field| field.on.iter().any(|on| maps.contains(on)))
}

/// Returns the names of the fields that these maps may have.
pub(super) fn names(maps: &[On]) -> Vec<&'static str> {
    let mut names = Vec::new();
    for field in on(maps) {
        if !names.contains(&field.name) {
            names.push(field.name);
        }
    }
    names
}

/// Returns the schema of a map.
pub(super) fn object(map: On, required: &[&str]) -> Value {
    let properties: Map<String, Value> = on(&[map])
        .map(|field| {
            let mut schema = (field.schema)();
            schema["description"] = json!(field.help);
            (field.name.to_owned(), schema)
        })
        .collect();
    json!({"type": "object", "required": required, "additionalProperties": false, "properties": properties})
}
