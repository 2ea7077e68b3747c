//! Checks that `docs/job-file.md` lists the fields of the table, and that every example in the table is valid.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use downbeat_core::backend::Catalogue;
use downbeat_core::spec::{self, Field, On};
use serde_json::{Value, json};

const BEGIN: &str = "<!-- written from the table of fields: UPDATE_GOLDEN=1 -->\n";
const END: &str = "<!-- end -->";

/// The sections of the page, with a description of each.
const SECTIONS: &[(On, &str, &str)] = &[
    (On::Job, "Job", "The fields of the file itself. Only `tasks` is required."),
    (
        On::Task,
        "Task",
        "An entry of `tasks` that does something. `backend` and `action` are required. A task inside a branch has no \
         `depends_on`, `target`, `placement` or `for_each`: these are set on the branch or on the job. A task with \
         `approve` has no `backend` and `action`: a person decides it.",
    ),
    (On::Branch, "Branch", "An entry of `tasks` that has `tasks` of its own: a pipeline for each node."),
    (On::Target, "`target` as a map", "`{scope: group, value: web}` is the same as `group:web`."),
    (
        On::Placement,
        "`placement`",
        "All conditions must hold; `prefer` and `spread` only order the nodes that fit.",
    ),
    (
        On::Preference,
        "`placement.prefer`",
        "Each entry sets at least one of `requires`, `labels` and `nodes`.",
    ),
    (On::Spread, "`placement.spread`", "`node`, or a map with a label."),
    (On::Rollout, "`rollout`", "`batch` is required. [fleet.md](fleet.md) describes roll-outs in detail."),
    (
        On::Approve,
        "`approve`",
        "May be empty: `approve: {}`. [graph.md](graph.md#approvals) describes approvals in detail.",
    ),
    (On::Retry, "`retry`", "`max` is required."),
    (
        On::ForEach,
        "`for_each`",
        "The items alone, or a map. [graph.md](graph.md) describes fan-out in detail.",
    ),
    (On::Cache, "`cache`", "`true`, `false`, or a map."),
    (
        On::Schedule,
        "`schedule`",
        "A cron expression alone, a map with `cron` or `every`, or a list of both. [schedules.md](schedules.md) describes \
         schedules in detail.",
    ),
    (
        On::CatchUp,
        "`schedule.catch_up`",
        "A duration, which is the window of `policy: all`; `none`; or a map. `window` is required, except with `policy: none`.",
    ),
    (On::Exclude, "`schedule.exclude`", "Days in the time zone of the schedule."),
    (
        On::Constraints,
        "`constraints`",
        "[jobs.md](jobs.md) describes when they are checked, and what follows.",
    ),
    (On::Hook, "Hooks", "`pre_run_hook` and `post_run_hook`. `url` is required."),
    (
        On::Action,
        "Actions",
        "Entries of `on_violation`, `on_success` and `on_failure`. `action` is required.",
    ),
    (
        On::Webhook,
        "`webhook`",
        "An action that sends a request. `url` is required. [webhooks.md](webhooks.md) describes messages.",
    ),
    (
        On::Slack,
        "`slack`",
        "An action that sends a message to a Slack-compatible service. `url` is required.",
    ),
    (On::Email, "`email`", "An action that sends an e-mail. `to` is required; the servers need `smtp_url`."),
    (
        On::Trigger,
        "`triggers`",
        "Each entry of the list has one of these fields. [triggers.md](triggers.md) describes triggers in detail.",
    ),
    (
        On::HttpTrigger,
        "`triggers[].http`",
        "`path` and `auth` are required, and `secret_env` or `secret_file` except with `auth: none`.",
    ),
    (On::JobTrigger, "`triggers[].job`", "`name` is required."),
    (
        On::EventTrigger,
        "`triggers[].event`",
        "`kind` is required. `group` is for events of nodes, `job` for those of runs.",
    ),
];

fn written() -> String {
    let mut page = String::new();
    for (on, title, about) in SECTIONS {
        writeln!(page, "\n### {title}\n\n{about}\n").unwrap();
        writeln!(page, "| field | value | default | meaning |\n|---|---|---|---|").unwrap();
        // The map's own fields first, then those that it shares with the job.
        let mut fields: Vec<&Field> = spec::fields().filter(|field| field.on.contains(on)).collect();
        fields.sort_by_key(|field| field.on[0] != *on);
        for field in fields {
            row(&mut page, field);
        }
    }
    page.push('\n');
    page
}

fn row(page: &mut String, field: &Field) {
    let schema = (field.schema)();
    let default = schema.get("default").map(|value| format!("`{}`", yaml(value))).unwrap_or_default();
    let examples: Vec<String> = schema["examples"]
        .as_array()
        .unwrap()
        .iter()
        .map(|value| format!("`{}: {}`", field.name, yaml(value)))
        .collect();
    let (name, value, help) = (field.name, describe(&schema), field.help);
    let line = format!("| `{name}` | {value} | {default} | {help}<br>{} |", examples.join("<br>"));
    writeln!(page, "{line}").unwrap();
}

/// Describes the type of a value in words.
fn describe(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return match reference.rsplit('/').next().unwrap() {
            "identifier" | "label" | "cluster_name" => "name".to_owned(),
            "duration" => "duration".to_owned(),
            "names" => "list of strings".to_owned(),
            "parallel" => describe(&spec::schema()["$defs"]["parallel"]),
            "requires" | "limits" => "map".to_owned(),
            "amount" | "wave" => "number or percentage".to_owned(),
            "items" => "list or expression".to_owned(),
            "target" => "selector or map".to_owned(),
            "spread" => "`node` or map".to_owned(),
            "for_each" => "list, expression or map".to_owned(),
            "cache" => "boolean or map".to_owned(),
            "rollout" | "approve" | "retry" | "placement" | "exclude" | "given" => "map".to_owned(),
            "http_trigger" | "job_trigger" | "event_trigger" => "map".to_owned(),
            "word" => "name".to_owned(),
            "constraints" | "hook" => "map".to_owned(),
            "recipients" => "address, or a list of them".to_owned(),
            "message_body" => "map or list".to_owned(),
            "life_actions" | "calls" => "map, or a list of them".to_owned(),
            "url" => "URL".to_owned(),
            "cron" => "string".to_owned(),
            "schedule" => "string or map".to_owned(),
            "catch_up" => "duration, `none` or map".to_owned(),
            other => panic!("say what `{other}` is"),
        };
    }
    if let Some(words) = schema["enum"].as_array() {
        return words
            .iter()
            .map(|word| format!("`{}`", word.as_str().unwrap()))
            .collect::<Vec<_>>()
            .join(", ");
    }
    if let Some(kinds) = schema["anyOf"].as_array() {
        let list = kinds.iter().any(|kind| kind["type"] == "array");
        return match kinds[0]["$ref"].as_str() {
            Some(_) if list => format!("{}, or a list of them", describe(&kinds[0])),
            _ => "string".to_owned(),
        };
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str()).unwrap();
    match (kind, &schema["minimum"], &schema["maximum"]) {
        ("object", ..) => "map".to_owned(),
        ("array", ..) if schema["items"]["$ref"] == "#/$defs/word" => "list of names".to_owned(),
        ("array", ..) if schema["items"]["$ref"] == "#/$defs/date" => "list of dates".to_owned(),
        ("array", ..) if schema["items"]["$ref"] == "#/$defs/weekday" => "list of weekdays".to_owned(),
        ("array", ..) if schema["items"]["$ref"] == "#/$defs/preference" => "list of maps".to_owned(),
        ("array", ..) if schema["items"]["$ref"] == "#/$defs/trigger" => "list of maps".to_owned(),
        ("array", ..) => "list of tasks".to_owned(),
        (kind, Value::Null, Value::Null) => kind.to_owned(),
        (kind, min, max) => format!("{kind}, {min} to {max}"),
    }
}

/// Formats a value as YAML on one line.
fn yaml(value: &Value) -> String {
    match value {
        Value::String(text) if text.contains("{{") || text.starts_with(['@', '*']) => format!("{text:?}"),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(yaml).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let fields = map.iter().map(|(key, value)| format!("{key}: {}", yaml(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// Returns a job in which this field has this value.
fn job_with(on: On, name: &str, value: &Value) -> Value {
    let with = |mut base: Value| {
        base[name] = value.clone();
        base
    };
    let build = json!({"name": "build", "backend": "exec", "action": "run", "params": {"command": "b"},
        "outputs": ["shards"]});
    let task = |more: Value| {
        let mut task = json!({"backend": "exec", "action": "run", "params": {"command": "a"}});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    };
    let scheduled = |schedule: Value| json!({"schedule": schedule, "tasks": [build]});
    let named = |mut job: Value| {
        job["name"] = json!("nightly");
        job["tasks"] = json!([build]);
        job
    };
    let triggered = |trigger: Value| json!({"triggers": [trigger], "tasks": [build]});
    let job = |last: Value| json!({"tasks": [build, last]});
    match on {
        On::Job if ["rollout", "exclusive"].contains(&name) => {
            with(json!({"target": "all", "tasks": [task(json!({}))]}))
        }
        On::Job if ["constraints", "overlap"].contains(&name) => named(with(json!({}))),
        On::Job if name == "on_violation" => named(with(json!({"constraints": {}}))),
        On::Job => with(json!({"tasks": [task(json!({}))]})),
        On::Task if name == "approve" => job(with(json!({"name": "ok", "condition": "always"}))),
        On::Task => job(with(task(json!({})))),
        On::Approve => job(json!({"approve": with(json!({}))})),
        On::Leaf => job(json!({"tasks": [with(task(json!({})))]})),
        On::Branch => job(with(json!({"tasks": [task(json!({}))]}))),
        On::Target if value == "web" => job(task(json!({"target": with(json!({"scope": "group"}))}))),
        On::Target => job(task(json!({"target": with(json!({"value": "web"}))}))),
        On::Placement => job(task(json!({"placement": with(json!({}))}))),
        On::Preference => job(task(json!({"placement": {"prefer": [with(json!({"labels": ["a"]}))]}}))),
        On::Spread => job(task(json!({"placement": {"spread": with(json!({}))}}))),
        On::Rollout => {
            json!({"target": "all", "rollout": with(json!({"batch": 1})), "tasks": [task(json!({}))]})
        }
        On::Retry => job(task(json!({"retry": with(json!({"max": 1}))}))),
        On::ForEach => job(task(json!({"for_each": with(json!({"items": [1]}))}))),
        On::Cache => job(task(json!({"cache": with(json!({}))}))),
        On::Schedule if ["cron", "every"].contains(&name) => scheduled(with(json!({}))),
        On::Schedule => scheduled(with(json!({"cron": "@daily"}))),
        On::CatchUp => scheduled(json!({"cron": "@daily", "catch_up": with(json!({"window": "1h"}))})),
        On::Exclude => scheduled(json!({"cron": "@daily", "exclude": with(json!({}))})),
        On::Constraints => named(json!({"constraints": with(json!({}))})),
        On::Hook => {
            let hook = with(json!({"url": "https://example.com"}));
            named(json!({"constraints": {"pre_run_hook": hook}}))
        }
        On::Action => {
            let base = match name {
                "delay" => json!({"action": "retry_later"}),
                "job" => json!({"action": "trigger_job"}),
                "params" => json!({"action": "trigger_job", "job": "report"}),
                _ => json!({"action": "skip"}),
            };
            named(json!({"constraints": {}, "on_violation": with(base)}))
        }
        On::Webhook if name == "action" => {
            named(json!({"on_success": with(json!({"url": "https://a.example"}))}))
        }
        On::Webhook => {
            named(json!({"on_success": with(json!({"action": "webhook", "url": "https://a.example"}))}))
        }
        On::Slack => {
            named(json!({"on_success": with(json!({"action": "slack", "url": "https://a.example"}))}))
        }
        On::Email if name == "action" => {
            named(json!({"on_success": with(json!({"url": "https://a.example"}))}))
        }
        On::Email => named(json!({"on_success": with(json!({"action": "email", "to": "a@b.example"}))})),
        On::Trigger => triggered(with(json!({}))),
        On::HttpTrigger if name == "auth" => {
            triggered(json!({"http": with(json!({"path": "a", "secret_env": "SECRET"}))}))
        }
        On::HttpTrigger if ["secret_env", "secret_file"].contains(&name) => {
            triggered(json!({"http": with(json!({"path": "a", "auth": "slack"}))}))
        }
        On::HttpTrigger => triggered(json!({"http": with(json!({"path": "a", "auth": "none"}))})),
        On::JobTrigger => triggered(json!({"job": with(json!({"name": "build"}))})),
        On::EventTrigger if name == "job" => triggered(json!({"event": with(json!({"kind": "run_failed"}))})),
        On::EventTrigger => triggered(json!({"event": with(json!({"kind": "node_registered"}))})),
    }
}

#[test]
fn every_example_of_a_field_is_valid_wherever_the_field_may_stand() {
    let schema = jsonschema::draft202012::new(&spec::schema()).unwrap();
    let catalogue = Catalogue::builtin();
    for field in spec::fields() {
        let examples = (field.schema)()["examples"].as_array().cloned().unwrap_or_default();
        assert!(!examples.is_empty(), "`{}` has no example", field.name);
        for (on, example) in field.on.iter().flat_map(|on| examples.iter().map(move |example| (*on, example)))
        {
            let job = job_with(on, field.name, example);
            let parsed = spec::from_json(&job, &catalogue);
            assert!(parsed.is_ok(), "`{}` on {on:?}: {parsed:?}", field.name);
            assert!(schema.is_valid(&job), "`{}` on {on:?}: the schema refuses {job}", field.name);
        }
    }
}

#[test]
fn a_field_is_refused_where_the_table_does_not_have_it() {
    let every = [
        On::Job,
        On::Task,
        On::Leaf,
        On::Branch,
        On::Target,
        On::Placement,
        On::Preference,
        On::Spread,
        On::Rollout,
        On::Approve,
        On::Retry,
        On::ForEach,
        On::Cache,
        On::Schedule,
        On::CatchUp,
        On::Exclude,
        On::Constraints,
        On::Hook,
        On::Action,
    ];
    let catalogue = Catalogue::builtin();
    for field in spec::fields() {
        let example = (field.schema)()["examples"][0].clone();
        let stands = |on: On| spec::fields().any(|other| other.name == field.name && other.on.contains(&on));
        for on in every.into_iter().filter(|on| !stands(*on)) {
            // Any entry with `tasks` is a branch.
            if field.name == "tasks" && on == On::Task {
                continue;
            }
            let parsed = spec::from_json(&job_with(on, field.name, &example), &catalogue);
            assert!(parsed.is_err(), "`{}` on {on:?} was accepted", field.name);
        }
    }
}

#[test]
fn the_page_of_the_job_file_lists_the_fields_as_they_are() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/job-file.md");
    let page = fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page marks where the list begins");
    let (found, after) = rest.split_once(END).expect("the page marks where the list ends");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, format!("{before}{BEGIN}{}{END}{after}", written())).unwrap();
        return;
    }
    assert_eq!(found, written(), "write it again with UPDATE_GOLDEN=1");
}
