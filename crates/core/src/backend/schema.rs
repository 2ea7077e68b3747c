//! Owns the schema of a node's backends: their actions, and the declared params of each. `check` checks params against
//! it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A task's params, by name.
pub type Params = BTreeMap<String, Value>;

/// A backend is a closed set of actions that an agent can run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BackendSchema {
    pub name: String,
    /// One line for users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub help: String,
    pub actions: Vec<ActionSchema>,
}

/// One action and its params. Undeclared params are refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ActionSchema {
    pub name: String,
    /// Whether running it twice leaves the host as running it once. Decides whether a lost attempt is retried.
    #[serde(default)]
    pub idempotent: bool,
    #[serde(default)]
    pub params: Vec<ParamSchema>,
}

/// One declared param.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ParamSchema {
    pub name: String,
    pub kind: ParamKind,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
    /// One line for users.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub help: String,
    /// A regular expression that must match the whole text; for a list or a map, every text in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// A regular expression that must match every whole name in a map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_pattern: Option<String>,
    /// The only valid texts, if there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    /// Bounds of a whole number, both inclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
    /// The maximum length of a text; for a list of each text, for a map of each text with its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

/// The kinds of values of params.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamKind {
    #[default]
    Text,
    Integer,
    Boolean,
    /// A duration such as `1.5s`.
    Duration,
    /// A list of texts; a single text is a list of one.
    Texts,
    /// An argv: a list of strings, or one string that is split at blanks, quotes respected.
    Argv,
    /// Texts by name.
    Map,
    /// Anything.
    Any,
}

/// Returns the approximate size of params on the wire and in a store, in bytes.
pub fn params_bytes(params: &Params) -> usize {
    fn value_bytes(value: &Value) -> usize {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 8,
            Value::String(text) => text.len() + 4,
            Value::Array(items) => items.iter().map(value_bytes).sum::<usize>() + 4,
            Value::Object(map) => {
                map.iter().map(|(key, value)| key.len() + 4 + value_bytes(value)).sum::<usize>() + 4
            }
        }
    }
    params.iter().map(|(name, value)| name.len() + 4 + value_bytes(value)).sum()
}

impl ParamSchema {
    /// Returns an optional param that accepts any value of its kind.
    pub fn new(name: impl Into<String>, kind: ParamKind) -> Self {
        Self { name: name.into(), kind, ..Self::default() }
    }
}

impl BackendSchema {
    pub fn action(&self, name: &str) -> Option<&ActionSchema> {
        self.actions.iter().find(|action| action.name == name)
    }
}
