//! Owns what a node says it can do: backends, their actions, and the declared params of each. Checking is `check`'s.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A task's params, by name.
pub type Params = BTreeMap<String, Value>;

/// Something an agent can do: a closed set of actions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BackendSchema {
    pub name: String,
    /// One line for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub help: String,
    pub actions: Vec<ActionSchema>,
}

/// One action, and the params that it takes. What is not declared is refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ActionSchema {
    pub name: String,
    /// Whether doing it twice leaves the host as doing it once. Decides whether a lost attempt is sent again.
    #[serde(default)]
    pub idempotent: bool,
    #[serde(default)]
    pub params: Vec<ParamSchema>,
}

/// One declared param.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ParamSchema {
    pub name: String,
    pub kind: ParamKind,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
    /// One line for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub help: String,
    /// A regular expression that a whole text matches; of a list or a map, every text in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// A regular expression that every name in a map matches as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_pattern: Option<String>,
    /// The only texts that are possible, when there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    /// Bounds of a whole number, both included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
    /// The longest text; of a list each in it, of a map each together with its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

/// What a param may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamKind {
    Text,
    Integer,
    Boolean,
    /// A duration such as `1.5s`.
    Duration,
    /// A list of texts; a single text is a list of one.
    Texts,
    /// An argv: a list of texts, or one text that is split at blanks, quotes respected.
    Argv,
    /// Texts by name.
    Map,
    /// Anything.
    Any,
}

/// About how many bytes params take on the wire and in a store.
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
    /// An optional param that holds anything of its kind.
    pub fn new(name: impl Into<String>, kind: ParamKind) -> Self {
        Self {
            name: name.into(),
            kind,
            required: false,
            help: String::new(),
            pattern: None,
            name_pattern: None,
            choices: Vec::new(),
            min: None,
            max: None,
            max_bytes: None,
        }
    }
}

impl BackendSchema {
    pub fn action(&self, name: &str) -> Option<&ActionSchema> {
        self.actions.iter().find(|action| action.name == name)
    }
}
