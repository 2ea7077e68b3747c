//! Reads params that were checked against their schema.

use downbeat_core::backend::Params;
use serde_json::Value;

pub(crate) fn text<'p>(params: &'p Params, name: &str) -> Option<&'p str> {
    params.get(name).and_then(Value::as_str)
}

pub(crate) fn texts(params: &Params, name: &str) -> Vec<String> {
    let items = params.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

pub(crate) fn map(params: &Params, name: &str) -> Vec<(String, String)> {
    let Some(entries) = params.get(name).and_then(Value::as_object) else { return Vec::new() };
    entries.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Returns a switch, which is off by default.
pub(crate) fn is_on(params: &Params, name: &str) -> bool {
    params.get(name).and_then(Value::as_bool).unwrap_or(false)
}
