//! Checks that the job file's JSON schema agrees with the parser, as far as a schema can.

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
    let schedule = |schedule: Value| json!({"schedule": schedule, "tasks": [ping]});
    let trigger = |triggers: Value| json!({"triggers": triggers, "tasks": [ping]});
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
        (trigger(json!([])), false),
        (trigger(json!({"http": {"path": "a", "auth": "none"}})), false),
        (trigger(json!([{}])), false),
        (trigger(json!([{"http": {"path": "a"}}])), false),
        (trigger(json!([{"http": {"path": "a", "auth": "none"}}])), true),
        (trigger(json!([{"http": {"path": "a/b", "auth": "none"}}])), false),
        (trigger(json!([{"http": {"path": "a", "auth": "none", "secret_env": "S"}}])), false),
        (trigger(json!([{"http": {"path": "a", "auth": "github"}}])), false),
        (trigger(json!([{"http": {"path": "a", "auth": "github", "secret": "x"}}])), false),
        (trigger(json!([{"http": {"path": "a", "auth": "github", "secret_env": "S"}}])), true),
        (trigger(json!([{"http": {"path": "a", "auth": "slack", "secret_file": "/etc/s"}}])), true),
        (trigger(json!([{"http": {"path": "a", "auth": "slack", "secret_file": "etc/s"}}])), false),
        (
            trigger(
                json!([{"http": {"path": "a", "auth": "slack", "secret_file": "/s", "secret_env": "S"}}]),
            ),
            false,
        ),
        (trigger(json!([{"job": {"name": "b"}}])), true),
        (
            trigger(json!([{"job": {"name": "b", "on": "failure"}}, {"job": {"name": "c", "on": "always"}}])),
            true,
        ),
        (trigger(json!([{"job": {"name": "b", "on": "completed"}}])), false),
        (trigger(json!([{"job": {"name": "b"}, "event": {"kind": "run_failed"}}])), false),
        (trigger(json!([{"event": {"kind": "run_failed", "job": "b"}}])), true),
        (trigger(json!([{"event": {"kind": "run_failed", "group": "b"}}])), false),
        (trigger(json!([{"event": {"kind": "node_registered", "group": "web"}}])), true),
        (trigger(json!([{"event": {"kind": "node_offline", "job": "web"}}])), false),
        (trigger(json!([{"event": {"group": "web"}}])), false),
        (schedule(json!({})), false),
        (schedule(json!(5)), false),
        (schedule(json!([])), false),
        (schedule(json!("@daily")), true),
        (schedule(json!({"cron": "0 3 * * *", "timezone": "Europe/Berlin", "jitter": "5m"})), true),
        (schedule(json!([{"every": "5m"}, "0 3 * * MON"])), true),
        (schedule(json!({"cron": "@daily", "every": "5m"})), false),
        (schedule(json!({"cron": "@daily", "at": "5m"})), false),
        (schedule(json!({"cron": "@daily", "catch_up": "1h"})), true),
        (schedule(json!({"cron": "@daily", "catch_up": "none"})), true),
        (schedule(json!({"cron": "@daily", "catch_up": "all"})), false),
        (schedule(json!({"cron": "@daily", "catch_up": {"policy": "none"}})), true),
        (schedule(json!({"cron": "@daily", "catch_up": {"policy": "none", "window": "1h"}})), false),
        (schedule(json!({"cron": "@daily", "catch_up": {"policy": "latest", "window": "1h"}})), true),
        (schedule(json!({"cron": "@daily", "catch_up": {"policy": "latest"}})), false),
        (schedule(json!({"cron": "@daily", "catch_up": {"window": "1h"}})), true),
        (
            schedule(
                json!({"cron": "@daily", "exclude": {"weekdays": ["Sat", "sunday"], "dates": ["12-24"]}}),
            ),
            true,
        ),
        (schedule(json!({"cron": "@daily", "exclude": {"weekdays": ["bank holiday"]}})), false),
        (schedule(json!({"cron": "@daily", "exclude": {"dates": ["24.12.2026"]}})), false),
        (schedule(json!({"cron": "@daily", "exclude": ["sat"]})), false),
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
        (leaf(json!({"for_each": [1, "a", {"b": []}, null]})), true),
        (leaf(json!({"for_each": []})), true),
        (leaf(json!({"for_each": {"items": ["a"], "max_parallel": 1}})), true),
        (leaf(json!({"for_each": "a"})), false),
        (leaf(json!({"for_each": 3})), false),
        (leaf(json!({"for_each": null})), false),
        (leaf(json!({"for_each": {"max_parallel": 1}})), false),
        (leaf(json!({"for_each": {"items": [1], "max_parallel": 0}})), false),
        (leaf(json!({"for_each": {"items": [1], "most": 1}})), false),
        (leaf(json!({"for_each": vec![0; 10_001]})), false),
        (
            json!({"params": {"p": [1]}, "tasks": [{"backend": "ping", "action": "ping", "for_each": "{{ params.p }}"}]}),
            true,
        ),
        (
            json!({"params": {"p": 1}, "tasks": [{"backend": "ping", "action": "ping", "for_each": "x{{ params.p }}"}]}),
            false,
        ),
        (json!({"tasks": [{"for_each": [1], "tasks": [ping]}]}), true),
        (json!({"tasks": [{"tasks": [{"backend": "ping", "action": "ping", "for_each": [1]}]}]}), false),
        (
            json!({"target": "all", "tasks": [{"backend": "ping", "action": "ping", "for_each": [1], "placement": {}}]}),
            true,
        ),
        (leaf(json!({"limits": {"db": 4, "api": "100/1m", "x": "5/s", "y": "3"}})), true),
        (leaf(json!({"limits": {}})), true),
        (leaf(json!({"limits": {"db": 0}})), false),
        (leaf(json!({"limits": {"db": 100_001}})), false),
        (leaf(json!({"limits": {"db": 1.5}})), false),
        (leaf(json!({"limits": {"db": "many"}})), false),
        (leaf(json!({"limits": {"db": "4/"}})), false),
        (leaf(json!({"limits": {"db": true}})), false),
        (leaf(json!({"limits": {"": 1}})), false),
        (leaf(json!({"limits": [1]})), false),
        (
            leaf(
                json!({"limits": (0..17).map(|i| (format!("k{i}"), json!(1))).collect::<serde_json::Map<_, _>>()}),
            ),
            false,
        ),
        (json!({"tasks": [ping], "limits": {"db": 4}, "max_parallel": 10, "placement_timeout": "5m"}), true),
        (json!({"tasks": [ping], "max_parallel": 0}), false),
        (json!({"tasks": [ping], "max_parallel": 1_000_001}), false),
        (leaf(json!({"max_parallel": 2})), false),
        (leaf(json!({"cache": true})), true),
        (leaf(json!({"cache": false})), true),
        (leaf(json!({"cache": {}})), true),
        (leaf(json!({"cache": {"max_age": "24h"}})), true),
        (leaf(json!({"cache": {"max_age": 24}})), false),
        (leaf(json!({"cache": {"age": "24h"}})), false),
        (leaf(json!({"cache": "24h"})), false),
        (leaf(json!({"placement_timeout": "30m"})), true),
        (leaf(json!({"placement_timeout": 30})), false),
        (
            leaf(
                json!({"placement": {"backends": ["docker"], "spread": "node", "prefer": [{"labels": ["a"]}]}}),
            ),
            true,
        ),
        (leaf(json!({"placement": {"spread": {"label": "zone"}, "prefer": []}})), true),
        (leaf(json!({"placement": {"spread": "zone"}})), false),
        (leaf(json!({"placement": {"spread": {"label": ""}}})), false),
        (leaf(json!({"placement": {"spread": {"label": "a", "node": 1}}})), false),
        (leaf(json!({"placement": {"prefer": [{}]}})), false),
        (leaf(json!({"placement": {"prefer": [{"weight": 3}]}})), false),
        (leaf(json!({"placement": {"prefer": [{"nodes": ["a"], "weight": 101}]}})), false),
        (leaf(json!({"placement": {"prefer": {"labels": ["a"]}}})), false),
        (sleep("{{ params.d }}"), true),
        (sleep("x"), false),
    ] {
        assert_eq!(schema.is_valid(&case), valid, "the schema on {case}");
        let parsed = spec::from_json(&case, &catalogue);
        assert_eq!(parsed.is_ok(), valid, "the parser on {case}: {parsed:?}");
    }
}
