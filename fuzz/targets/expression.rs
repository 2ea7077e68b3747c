//! Any text is rendered within its bounds, or refused with a message of one line; and what it does not say that it uses
//! makes no difference to it.

#![no_main]

use std::collections::BTreeMap;

use downbeat_core::backend::{ParamProblem, Params, params_bytes};
use downbeat_core::expr::{Data, References, Scope, Template};
use downbeat_core::limits;
use libfuzzer_sys::fuzz_target;
use serde_json::json;

fn template(params: &Params) -> Result<Option<Template>, ParamProblem> {
    Template::of("test", "echo", params)
}

fn uses(params: &Params) -> Result<Option<References>, ParamProblem> {
    Ok(template(params)?.map(|template| template.references()))
}

fn render(params: &Params, scope: &Scope) -> Result<Params, ParamProblem> {
    template(params)?.map_or_else(|| Ok(params.clone()), |template| template.render(scope))
}

fn scope() -> Scope {
    let outputs = Data::from(&json!({"x": "1.2", "y": [1, "a", null], "z": {"a": {"b": true}}}));
    let step = Data::map([("outputs".to_owned(), outputs.clone())]);
    let nodes = Data::map([("web-01".to_owned(), step)]);
    let step = Data::map([("outputs".to_owned(), outputs), ("nodes".to_owned(), nodes)]);
    Scope {
        event: None,
        run: Data::from(&json!({"id": "run-1", "job": "deploy"})),
        params: Data::from(&json!({"x": "a b", "y": 5, "z": [1, 2], "long": "x".repeat(10_000)})),
        node: Some(Data::from(&json!({"id": "n", "hostname": "web-01", "groups": ["web"], "labels": {"a": "b"}}))),
        steps: BTreeMap::from([("build".to_owned(), step.clone()), ("build-web".to_owned(), step)]),
        item: Some((Data::from(&json!({"path": "a", "parts": [1, 2]})), 3)),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for value in [json!(text), json!(format!("{{{{{text}}}}}")), json!(["x", {"y": text}])] {
        let params = Params::from([("p".to_owned(), value)]);
        let used = match uses(&params) {
            Ok(None) => {
                assert_eq!(render(&params, &scope()).as_ref(), Ok(&params));
                continue;
            }
            Ok(Some(used)) => used,
            Err(problem) => {
                assert!(!problem.message.contains(|c: char| c.is_control()), "{problem:?}");
                continue;
            }
        };
        let full = render(&params, &scope());
        match &full {
            Ok(rendered) => assert!(params_bytes(rendered) <= 2 * limits::PARAMS_BYTES),
            Err(problem) => assert!(!problem.message.contains(|c: char| c.is_control()), "{problem:?}"),
        }
        let mut less = scope();
        less.steps.retain(|name, _| used.steps.contains(name));
        less.node = less.node.filter(|_| used.node);
        if full.is_ok() {
            assert_eq!(render(&params, &less), full);
        }
    }
});
