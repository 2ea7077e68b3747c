//! Owns the values that expressions read (the run, its params, the node, the outputs of steps), and their conversion
//! from and to JSON.

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::Error;
use minijinja::value::{Object, Value, ValueKind};

use super::filters::{spend, wrong};

use crate::backend::Params;
use crate::node::NodeRecord;

/// A value that expressions read; cheap to clone.
#[derive(Clone, Debug)]
pub struct Data(pub(super) Value);

impl From<&Params> for Data {
    fn from(params: &Params) -> Self {
        Self(Value::from_pairs(params.iter().map(|(name, value)| (name.as_str(), of_json(value)))))
    }
}

impl From<&serde_json::Value> for Data {
    fn from(value: &serde_json::Value) -> Self {
        Self(of_json(value))
    }
}

impl Data {
    pub fn list(items: impl IntoIterator<Item = Option<Data>>) -> Self {
        let items = items.into_iter().map(|item| item.map_or_else(|| Value::from(()), |Data(value)| value));
        Self(Value::from(items.collect::<Vec<_>>()))
    }

    /// Returns the part of this name.
    pub fn part(&self, name: &str) -> Option<Data> {
        part(&self.0, &Value::from(name)).map(Data)
    }

    pub fn map(entries: impl IntoIterator<Item = (String, Data)>) -> Self {
        Self(Value::from_pairs(entries.into_iter().map(|(key, Data(value))| (key, value))))
    }
}

fn of_json(value: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match value {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => number.as_f64().map_or_else(|| Value::from(()), Value::from),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(of_json).collect::<Vec<_>>()),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), of_json(value)))),
    }
}

/// All values that the expressions of one instance read.
#[derive(Clone, Debug)]
pub struct Scope {
    /// A map with `id`, `job` and, for a run of a schedule, `scheduled_at`.
    pub run: Data,
    /// The run's params.
    pub params: Data,
    /// The node's `facts`; `None` when the node is not known yet.
    pub node: Option<Data>,
    /// For each step by name, a map with `outputs` (those that `steps.NAME.outputs` means here) and `nodes`, which maps
    /// hostnames to a map with `outputs`. A node that did not run has no entry. Only steps that `References` names are
    /// needed.
    pub steps: BTreeMap<String, Data>,
    /// The instance's item of `for_each`, and its index.
    pub item: Option<(Data, u32)>,
    /// What a message is about; `None` in tasks.
    pub event: Option<Data>,
}

impl Scope {
    pub(super) fn context(&self) -> Value {
        let steps = self.steps.iter().map(|(name, Data(step))| (name.clone(), step.clone())).collect();
        let mut entries = vec![
            ("run", self.run.0.clone()),
            ("params", self.params.0.clone()),
            ("steps", Value::from_object(Steps(steps))),
        ];
        entries.extend(self.node.as_ref().map(|Data(node)| ("node", node.clone())));
        entries.extend(self.event.as_ref().map(|Data(event)| ("event", event.clone())));
        if let Some((Data(item), index)) = &self.item {
            entries.extend([("item", item.clone()), ("index", Value::from(*index))]);
        }
        Value::from_pairs(entries)
    }
}

/// The steps. A missing step, node or map of outputs reads as empty, so that only the value itself is missing and
/// `default` can replace it.
#[derive(Debug)]
struct Steps(BTreeMap<String, Value>);

#[derive(Debug)]
struct Step(Option<Value>);

#[derive(Debug)]
struct Nodes(Option<Value>);

impl Object for Steps {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        Some(Value::from_object(Step(self.0.get(key.as_str()?).cloned())))
    }
}

impl Object for Step {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let part = self.0.as_ref().and_then(|step| part(step, key));
        match key.as_str()? {
            "outputs" => Some(part.unwrap_or_else(empty)),
            "nodes" => Some(Value::from_object(Nodes(part))),
            _ => None,
        }
    }
}

impl Object for Nodes {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        Some(Value::from_object(Step(self.0.as_ref().and_then(|nodes| part(nodes, key)))))
    }
}

fn part(of: &Value, key: &Value) -> Option<Value> {
    of.get_item(key).ok().filter(|value| !value.is_undefined())
}

fn empty() -> Value {
    Value::from_pairs(std::iter::empty::<(&str, Value)>())
}

/// Returns the value of `node` in expressions.
pub fn facts(node: &NodeRecord) -> serde_json::Value {
    let description = &node.description;
    serde_json::json!({
        "id": node.id,
        "hostname": description.hostname,
        "groups": description.groups,
        "labels": description.labels,
        "capabilities": description.capabilities,
        "slots": description.slots,
        "version": description.version,
    })
}

/// Converts a value to JSON. Charges its size to the remaining budget `left`.
pub(super) fn to_json(value: &Value, left: &mut usize) -> Result<serde_json::Value, Error> {
    use serde_json::Value as Json;
    spend(left, 4)?;
    Ok(match value.kind() {
        ValueKind::Undefined | ValueKind::None => Json::Null,
        ValueKind::Bool => Json::Bool(value.is_true()),
        ValueKind::Number => number(value)?,
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            spend(left, text.len())?;
            Json::String(text.to_owned())
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| to_json(&item, left));
            Json::Array(items.collect::<Result<_, _>>()?)
        }
        ValueKind::Map => {
            let mut map = serde_json::Map::new();
            for key in value.try_iter()? {
                let name = key.as_str().ok_or_else(|| wrong("the keys of a map must be strings"))?;
                spend(left, name.len() + 4)?;
                map.insert(name.to_owned(), to_json(&value.get_item(&key)?, left)?);
            }
            Json::Object(map)
        }
        _ => return Err(wrong("it is not a value")),
    })
}

fn number(value: &Value) -> Result<serde_json::Value, Error> {
    if value.is_integer() {
        let whole = value.as_i64().map(serde_json::Value::from);
        let whole = whole.or_else(|| u64::try_from(value.clone()).ok().map(serde_json::Value::from));
        return whole.ok_or_else(|| wrong("the number is too large"));
    }
    let number = f64::try_from(value.clone()).ok().and_then(serde_json::Number::from_f64);
    number.map(serde_json::Value::Number).ok_or_else(|| wrong("the number is too large"))
}
