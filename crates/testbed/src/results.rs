//! Arranges the results of a run so that a test finds one of them by its step and its node or item.

use serde_json::{Map, Value, json};

/// Adds a list of results to a run: by step, then by hostname, `[3]` for an item, or `-` while no node has it.
pub fn with_results(mut run: Value, results: &Value) -> Value {
    let mut by_step = Map::new();
    for result in results["data"].as_array().into_iter().flatten() {
        let key = match (&result["item"], &result["node"]) {
            (Value::Number(item), _) => format!("[{item}]"),
            (_, Value::String(node)) => node.clone(),
            _ => "-".to_owned(),
        };
        let step = by_step.entry(result["step"].to_string()).or_insert_with(|| json!({}));
        step[key] = result.clone();
    }
    run["results"] = Value::Object(by_step);
    run
}
