//! Resolves a run's params from the job's declarations and the given values, and reports invalid ones.

use serde_json::Value;

use super::Definition;
use crate::backend::{ParamProblem, Params, params_bytes};
use crate::limits;
use crate::nearest::advice;
use crate::shown::shown;

/// Returns the run's params: the given values, and the defaults of the rest. A text is converted to the type of the
/// default, so that `--param count=5` is a number if the default is one.
pub fn resolve_params(definition: &Definition, given: &Params) -> Result<Params, Vec<ParamProblem>> {
    let declared = &definition.params;
    let names: Vec<&str> = declared.keys().map(String::as_str).collect();
    let mut problems = Vec::new();
    let mut refuse = |param: &str, message: String| {
        if problems.len() < limits::PROBLEMS_LISTED {
            problems.push(ParamProblem { param: param.to_owned(), element: None, message });
        }
    };
    let mut params = declared.clone();
    for (name, value) in given {
        let value = match declared.get(name) {
            None if names.is_empty() => Err(format!("the job has no params; remove `{}`", shown(name))),
            None => {
                Err(format!("the job has no param `{}`; {}", shown(name), advice(name, &names, "params")))
            }
            Some(default) => of_type(default, value),
        };
        match value {
            Ok(value) => {
                params.insert(name.clone(), value);
            }
            Err(message) => refuse(name, message),
        }
    }
    let unset = |name: &String| given.get(name).is_none_or(Value::is_null);
    for (name, _) in declared.iter().filter(|(name, default)| default.is_null() && unset(name)) {
        refuse(name, "has no default and must be given".to_owned());
    }
    let (bytes, most) = (params_bytes(&params), limits::PARAMS_BYTES);
    if bytes > most {
        refuse("params", format!("all of them are {bytes} bytes; at most {most} are possible"));
    }
    if problems.is_empty() { Ok(params) } else { Err(problems) }
}

fn of_type(default: &Value, given: &Value) -> Result<Value, String> {
    let deepest = limits::NESTING_DEPTH;
    if !is_storable(given, deepest) {
        return Err(format!("contains a NUL character, or is nested more than {deepest} levels deep"));
    }
    let read = |valid: &str| match given {
        Value::String(text) => serde_json::from_str::<Value>(text)
            .ok()
            .filter(|value| same_type(default, value) && is_storable(value, deepest))
            .ok_or_else(|| format!("must be {valid}, like its default, not the string \"{}\"", shown(text))),
        _ => Err(format!("must be {valid}, like its default, not {}", shown(&given.to_string()))),
    };
    match default {
        _ if given.is_null() => Ok(default.clone()),
        Value::Null => Ok(given.clone()),
        _ if same_type(default, given) => Ok(given.clone()),
        Value::Bool(_) => read("true or false"),
        Value::Number(_) => read("a number"),
        Value::String(_) => {
            let found = shown(&given.to_string());
            Err(format!("must be a string, like its default, not {found}; write it in quotes"))
        }
        Value::Array(_) => read("a list in JSON"),
        Value::Object(_) => read("a map in JSON"),
    }
}

fn same_type(a: &Value, b: &Value) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

/// Returns whether a value has no NUL and is nested at most `depth` levels deep.
pub(super) fn is_storable(value: &Value, depth: usize) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
        Value::String(text) => !text.contains('\0'),
        Value::Array(items) => depth > 0 && items.iter().all(|item| is_storable(item, depth - 1)),
        Value::Object(map) => {
            depth > 0 && map.iter().all(|(key, value)| !key.contains('\0') && is_storable(value, depth - 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(declared: &Value, given_params: Value) -> Result<Value, Vec<String>> {
        let definition = json!({"params": declared, "tasks": []});
        let definition: Definition = serde_json::from_value(definition).unwrap();
        match resolve_params(&definition, &serde_json::from_value(given_params).unwrap()) {
            Ok(params) => Ok(serde_json::to_value(params).unwrap()),
            Err(problems) => Err(problems.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn what_is_given_takes_the_type_of_the_default() {
        let declared = json!({"t": "x", "n": 1, "b": false, "l": [], "m": {}, "must": null});
        for (given, expected) in [
            (json!({"must": "5"}), json!({"t": "x", "n": 1, "b": false, "l": [], "m": {}, "must": "5"})),
            (
                json!({"t": "5", "n": "2.5", "b": "true", "l": "[1]", "m": "{\"a\": 1}", "must": [1]}),
                json!({"t": "5", "n": 2.5, "b": true, "l": [1], "m": {"a": 1}, "must": [1]}),
            ),
            (
                json!({"t": "", "n": -7, "b": true, "l": ["a"], "m": {"b": {}}, "must": 0}),
                json!({"t": "", "n": -7, "b": true, "l": ["a"], "m": {"b": {}}, "must": 0}),
            ),
            (
                json!({"n": null, "must": false}),
                json!({"t": "x", "n": 1, "b": false, "l": [], "m": {}, "must": false}),
            ),
        ] {
            assert_eq!(of(&declared, given.clone()), Ok(expected), "{given}");
        }
        assert_eq!(of(&json!({}), json!({})), Ok(json!({})));
    }

    #[test]
    fn everything_that_is_wrong_is_named() {
        let declared = json!({"version": null, "count": 1, "yes": true, "text": "x", "list": [], "map": {}});
        let given = json!({
            "verison": "1", "count": "five", "yes": 1, "text": 1.5, "list": "a,b", "map": "[]"
        });
        assert_eq!(
            of(&declared, given),
            Err(vec![
                "count: must be a number, like its default, not the string \"five\"".to_owned(),
                "list: must be a list in JSON, like its default, not the string \"a,b\"".to_owned(),
                "map: must be a map in JSON, like its default, not the string \"[]\"".to_owned(),
                "text: must be a string, like its default, not 1.5; write it in quotes".to_owned(),
                "verison: the job has no param `verison`; did you mean `version`? \
                 (params: count, list, map, text, version, yes)"
                    .to_owned(),
                "yes: must be true or false, like its default, not 1".to_owned(),
                "version: has no default and must be given".to_owned(),
            ])
        );
        assert_eq!(
            of(&declared, json!({"version": null})),
            Err(vec!["version: has no default and must be given".to_owned()])
        );
        assert_eq!(
            of(&json!({}), json!({"x": 1})),
            Err(vec!["x: the job has no params; remove `x`".to_owned()])
        );
    }

    #[test]
    fn what_no_store_can_hold_is_refused() {
        let mut deep = json!(1);
        for _ in 0..40 {
            deep = json!([deep]);
        }
        for given in [json!("a\0b"), json!(["\0"]), json!({"\0": 1}), deep] {
            let problem = of(&json!({"x": null}), json!({"x": given})).unwrap_err().remove(0);
            assert!(problem.starts_with("x: contains a NUL character, or is nested"), "{problem}");
        }
        let problem = of(&json!({"x": null}), json!({"x": "x".repeat(2_000_000)})).unwrap_err().remove(0);
        assert!(problem.contains("at most 1048576 are possible"), "{problem}");
    }
}
