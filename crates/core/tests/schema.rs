//! The job file's JSON schema says the same as the parser, wherever a schema can say it.

use std::fs;
use std::path::Path;

use downbeat_core::spec;
use serde_json::{Value, json};

fn schema() -> jsonschema::Validator {
    jsonschema::draft202012::new(&spec::schema()).unwrap()
}

#[test]
fn the_schema_is_a_schema() {
    assert!(jsonschema::meta::is_valid(&spec::schema()));
}

#[test]
fn every_definition_that_was_read_satisfies_the_schema() {
    let schema = schema();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/job_files/good");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().ends_with(".golden.json") {
            let value: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            let errors: Vec<String> = schema.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{}: {errors:?}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 8, "only {seen} files");
}

#[test]
fn schema_and_parser_agree() {
    let ping = json!({"backend": "ping", "action": "ping"});
    let leaf = |more: Value| {
        let mut leaf = ping.clone();
        leaf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"tasks": [leaf]})
    };
    let rollout = |rollout: Value| json!({"target": "all", "rollout": rollout, "tasks": [ping]});
    let sleep = |duration: &str| {
        let task = json!({"backend": "test", "action": "sleep", "params": {"duration": duration}});
        json!({"params": {"d": "1s"}, "tasks": [task]})
    };
    let schema = schema();
    let catalogue = downbeat_core::backend::Catalogue::builtin();
    for (case, valid) in [
        (json!({"tasks": [ping]}), true),
        (json!({"tasks": []}), false),
        (json!({}), false),
        (json!([ping]), false),
        (json!({"tasks": [ping], "colour": 1}), false),
        (json!({"tasks": [ping], "schedule": {}}), false),
        (json!({"tasks": [ping], "name": "a/b"}), false),
        (json!({"tasks": [ping], "target": "all", "placement": {}}), false),
        (json!({"tasks": [ping], "target": {"scope": "all"}}), true),
        (json!({"tasks": [ping], "target": {"scope": "group"}}), false),
        (json!({"tasks": [ping], "target": {"scope": "node", "value": "a"}}), true),
        (json!({"tasks": [ping], "strategy": "continue"}), true),
        (json!({"tasks": [ping], "strategy": "brave"}), false),
        (json!({"tasks": [{"tasks": [ping]}]}), true),
        (json!({"tasks": [{"tasks": []}]}), false),
        (json!({"tasks": [{"tasks": [{"tasks": [ping]}]}]}), false),
        (json!({"tasks": [{"backend": "ping", "tasks": [ping]}]}), false),
        (json!({"tasks": [{"tasks": [{"backend": "ping", "action": "ping", "target": "all"}]}]}), false),
        (json!({"tasks": [{"backend": "ping"}]}), false),
        (json!({"tasks": [{"backend": "ping", "action": "pong"}]}), false),
        (json!({"tasks": [{"backend": "exec", "action": "run"}]}), false),
        (json!({"tasks": [{"backend": "exec", "action": "run", "params": {"command": "a"}}]}), true),
        (json!({"tasks": [{"backend": "exec", "action": "run", "params": {"command": ["a", 5]}}]}), true),
        (json!({"tasks": [{"backend": "exec", "action": "run", "params": {"command": []}}]}), false),
        (json!({"tasks": [{"backend": "exec", "action": "run", "params": {"comand": "a"}}]}), false),
        (json!({"tasks": [{"backend": "test", "action": "sleep", "params": {"duration": "5"}}]}), false),
        (json!({"tasks": [{"backend": "test", "action": "fail", "params": {"exit_code": 256}}]}), false),
        (json!({"tasks": [{"backend": "apt", "action": "install", "params": {"package": "curl"}}]}), true),
        (
            json!({"tasks": [{"backend": "apt", "action": "install", "params": {"package": ["g++", "x2=1~b"]}}]}),
            true,
        ),
        (json!({"tasks": [{"backend": "apt", "action": "install", "params": {"package": "-y"}}]}), false),
        (json!({"tasks": [{"backend": "apt", "action": "install", "params": {"package": ["a b"]}}]}), false),
        (json!({"tasks": [{"backend": "apt", "action": "install", "params": {"package": []}}]}), false),
        (
            json!({"tasks": [{"backend": "systemd", "action": "start", "params": {"unit": "a\\x2db@c"}}]}),
            true,
        ),
        (json!({"tasks": [{"backend": "systemd", "action": "start", "params": {"unit": "*"}}]}), false),
        (
            json!({"target": "all", "tasks": [{"backend": "systemd", "action": "start",
                "params": {"unit": "x@{{ node.hostname }}"}}]}),
            true,
        ),
        (
            json!({"target": "all", "tasks": [{"backend": "apt", "action": "install",
                "params": {"package": ["curl", "{{ node.hostname }}"]}}]}),
            true,
        ),
        (leaf(json!({"params": null})), true),
        (leaf(json!({"params": {"x": 1}})), false),
        (leaf(json!({"timeout": "1h 30m"})), true),
        (leaf(json!({"timeout": 30})), false),
        (leaf(json!({"max_retries": 3})), true),
        (leaf(json!({"max_retries": 101})), false),
        (leaf(json!({"max_retries": 3, "retry": {"max": 3}})), false),
        (leaf(json!({"retry": {"delay": "1s"}})), false),
        (leaf(json!({"condition": "on_fail"})), false),
        (leaf(json!({"delivery": "at_most_once", "on_disconnect": "stop"})), true),
        (leaf(json!({"placement": {"requires": {"gpu": "nvidia", "cpu": 4}, "max_per_node": 1}})), true),
        (leaf(json!({"placement": {"max_per_node": 0}})), false),
        (leaf(json!({"name": " padded "})), false),
        (rollout(json!({"batch": 10})), true),
        (rollout(json!({"batch": "25%"})), true),
        (rollout(json!({"batch": "10"})), true),
        (rollout(json!({"batch": [1, "10%", "100%"], "pause": "5m", "max_failures": "5%"})), true),
        (rollout(json!({"batch": 1, "max_failures": 0})), true),
        (rollout(json!({"pause": "5m"})), false),
        (rollout(json!({"batch": 0})), false),
        (rollout(json!({"batch": "0%"})), false),
        (rollout(json!({"batch": "0"})), false),
        (rollout(json!({"batch": "101%"})), false),
        (rollout(json!({"batch": -1})), false),
        (rollout(json!({"batch": 1.5})), false),
        (rollout(json!({"batch": []})), false),
        (rollout(json!({"batch": [1, 0]})), false),
        (rollout(json!({"batch": vec![1; 101]})), false),
        (rollout(json!({"batch": 1, "max_failures": -1})), false),
        (rollout(json!({"batch": 1, "size": 1})), false),
        (json!({"tasks": [ping], "rollout": {"batch": 1}}), false),
        (json!({"tasks": [ping], "target": "all", "strategy": "continue", "rollout": {"batch": 1}}), false),
        (json!({"tasks": [ping], "target": "all", "exclusive": true, "priority": -100}), true),
        (json!({"tasks": [ping], "exclusive": "yes"}), false),
        (json!({"tasks": [ping], "priority": 101}), false),
        (json!({"tasks": [ping], "priority": 1.5}), false),
        (json!({"tasks": [ping], "params": {"a": 1, "_B2": null, "c": {"d": [1]}}}), true),
        (json!({"tasks": [ping], "params": null}), true),
        (json!({"tasks": [ping], "params": {"a-b": 1}}), false),
        (json!({"tasks": [ping], "params": {"1a": 1}}), false),
        (json!({"tasks": [ping], "params": ["a"]}), false),
        (leaf(json!({"outputs": ["a", "_b2"]})), true),
        (leaf(json!({"outputs": []})), true),
        (leaf(json!({"outputs": ["a", "a"]})), false),
        (leaf(json!({"outputs": ["a-b"]})), false),
        (leaf(json!({"outputs": "a"})), false),
        (leaf(json!({"outputs": (0..65).map(|i| format!("o{i}")).collect::<Vec<_>>()})), false),
        (sleep("{{ params.d }}"), true),
        (sleep("x"), false),
    ] {
        assert_eq!(schema.is_valid(&case), valid, "the schema on {case}");
        let parsed = spec::from_json(&case, &catalogue);
        assert_eq!(parsed.is_ok(), valid, "the parser on {case}: {parsed:?}");
    }
}
