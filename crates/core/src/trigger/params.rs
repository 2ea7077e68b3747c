//! Decides with which params a trigger starts its job.

use serde_json::{Value, json};

use crate::backend::{ParamProblem, Params};
use crate::expr::{Data, Template};
use crate::spec::{Definition, Trigger, resolve_params};

/// Returns the run's params: those that the trigger sets, checked against the job's declarations, and the defaults of the
/// rest. `facts` is the value of `trigger` in expressions.
pub fn params(
    definition: &Definition,
    trigger: &Trigger,
    facts: &Value,
    payload: Option<&Value>,
) -> Result<Params, Vec<ParamProblem>> {
    let given = trigger.params();
    let template = Template::of_trigger(given).map_err(|problem| vec![problem])?;
    match template {
        None => resolve_params(definition, given),
        Some(template) => {
            let rendered = template.render_trigger(&Data::from(facts), payload.map(Data::from).as_ref());
            resolve_params(definition, &rendered.map_err(|problem| vec![problem])?)
        }
    }
}

/// Returns the value of `trigger` for a request.
pub fn http_facts(path: &str, event: Option<&str>, delivery: Option<&str>) -> Value {
    json!({"path": path, "event": event, "delivery": delivery})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Catalogue;
    use crate::spec;

    fn of(declared: &Value, given: &Value, payload: &Value) -> Result<Value, String> {
        let job = json!({
            "name": "a", "params": declared, "tasks": [{"backend": "test", "action": "noop"}],
            "triggers": [{"http": {"path": "a", "auth": "none", "params": given}}],
        });
        let definition = spec::parse(&job.to_string(), "job.json", &Catalogue::builtin()).unwrap();
        let facts = http_facts("a", Some("push"), None);
        match params(&definition, &definition.triggers[0], &facts, Some(payload)) {
            Ok(params) => Ok(serde_json::to_value(params).unwrap()),
            Err(problems) => Err(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
        }
    }

    #[test]
    fn params_come_from_the_payload_and_have_the_types_of_their_defaults() {
        let payload =
            json!({"ref": "refs/heads/main", "count": 3, "head": {"id": "abc"}, "files": ["a", "b"]});
        let declared = json!({"r": "none", "n": 1, "l": [], "m": {}});
        for (given, expected) in [
            (json!({}), Ok(json!({"r": "none", "n": 1, "l": [], "m": {}}))),
            (
                json!({"r": "{{ payload.ref }}"}),
                Ok(json!({"r": "refs/heads/main", "n": 1, "l": [], "m": {}})),
            ),
            (
                json!({"r": "{{ trigger.path }}/{{ trigger.event }}", "n": "{{ payload.count }}", "l": "{{ payload.files }}",
                    "m": "{{ payload.head }}"}),
                Ok(json!({"r": "a/push", "n": 3, "l": ["a", "b"], "m": {"id": "abc"}})),
            ),
            (
                json!({"r": "{{ trigger.delivery | default('x') }}", "n": 7}),
                Ok(json!({"r": "x", "n": 7, "l": [], "m": {}})),
            ),
            (json!({"r": "{{ payload.reff }}"}), Err("r: `payload.reff` has no value in this request")),
            (
                json!({"n": "{{ payload.ref }}"}),
                Err("n: must be a number, like its default, not the string \"refs/heads/main\""),
            ),
            (
                json!({"r": "{{ payload.count }}"}),
                Err("r: must be a string, like its default, not 3; write it in quotes"),
            ),
        ] {
            assert_eq!(of(&declared, &given, &payload), expected.map_err(str::to_owned), "{given}");
        }
        let refused = of(&declared, &json!({"r": "{{ payload.ref }}"}), &json!(null)).unwrap_err();
        assert_eq!(refused, "r: `payload.ref` has no value in this request");
    }
}
