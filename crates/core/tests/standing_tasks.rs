//! Standing tasks as people write them: every form that is accepted, and the message for every form that is not.

use downbeat_core::backend::Catalogue;
use downbeat_core::ids::{ClusterId, TaskId};
use downbeat_core::span::Span;
use downbeat_core::standing::{TaskFields, edit, read};
use downbeat_core::{Timestamp, cluster::ClusterRecord};
use serde_json::{Value, json};

fn task(value: &Value) -> Result<TaskFields, String> {
    read::task_of_json(value, &Catalogue::builtin())
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | "))
}

#[test]
fn the_forms_of_a_command_are_one_task() {
    let config = json!({
        "name": "Install dependencies", "type": "exec", "blocking": true,
        "config": {"command": "apt-get update", "timeout_seconds": 3600, "working_dir": "/srv"}
    });
    let short = json!({
        "name": "Install dependencies", "blocking": true, "command": "apt-get update", "timeout": "1h",
        "working_dir": "/srv"
    });
    let long = json!({
        "name": "Install dependencies", "blocking": true, "backend": "exec", "action": "shell", "timeout": "60m",
        "params": {"command": "apt-get update", "working_dir": "/srv"}, "selector": null
    });
    let read = task(&config).unwrap();
    assert_eq!(task(&short).unwrap(), read);
    assert_eq!(task(&long).unwrap(), read);
    assert_eq!((read.blocking, read.timeout), (true, Span::from_secs(3600)));
    let plain = task(&json!({"name": "a", "config": {"command": "true", "working_dir": ""}})).unwrap();
    assert_eq!(plain, TaskFields::shell("a", "true"));
    assert_eq!(plain.timeout, Span::from_secs(1800));
}

#[test]
fn each_wrong_field_has_its_message() {
    let long = "n".repeat(201);
    let id = TaskId(uuid::Uuid::from_u128(7)).to_string();
    let cases = [
        (json!({"command": "true"}), "the field `name` is missing"),
        (json!({"name": "a"}), "a task needs a `command`, or a `backend` and an `action`"),
        (json!({"name": "a", "backend": "exec"}), "a task needs a `command`, or a `backend` and an `action`"),
        (
            json!({"name": long, "command": "true"}),
            "name: the name has 201 characters; at most 200 are possible",
        ),
        (json!({"name": id, "command": "true"}), "name: looks like the id of a task; choose another name"),
        (json!({"name": "a", "command": " "}), "command: must not be empty"),
        (json!({"name": "a", "command": "true", "timeout": "9s"}), "timeout: must be from 10s to 1d, not 9s"),
        (
            json!({"name": "a", "config": {"command": "true", "timeout_seconds": 86401}}),
            "config.timeout_seconds: must be a whole number from 10 to 86400, not the number 86401",
        ),
        (
            json!({"name": "a", "config": {"command": "true", "working_dir": "srv"}}),
            "config.working_dir: must be an absolute path, not `srv`",
        ),
        (
            json!({"name": "a", "backend": "exec", "action": "run", "params": {"command": "x", "working_dir": "."}}),
            "params.working_dir: must be an absolute path, not `.`",
        ),
        (json!({"name": "a", "config": {"timeout_seconds": 60}}), "config: the field `command` is missing"),
        (
            json!({"name": "a", "type": "docker", "command": "true"}),
            "type: must be exec; for other work write `backend`, `action` and `params` instead, not the string \"docker\"",
        ),
        (
            json!({"name": "a", "command": "true", "backend": "ping", "action": "ping"}),
            "command: is given besides `backend` and `action`; keep one: the command, or backend, action and params",
        ),
        (
            json!({"name": "a", "backend": "pign", "action": "ping"}),
            "backend: there is no backend `pign`; did you mean `ping`?",
        ),
        (
            json!({"name": "a", "command": "echo {{ params.x }}"}),
            "command: a standing task cannot contain expressions (`{{`); write the value out",
        ),
        (
            json!({"name": "a", "backend": "exec", "action": "run", "params": {"command": ["echo", "{{ node.x }}"]}}),
            "params.command: a standing task cannot contain expressions (`{{`); write the value out",
        ),
        (
            json!({"name": "a", "command": "true", "order": 1}),
            "order: unknown field `order`; the order of the list is its order; use `position`, or reorder the list",
        ),
        (json!([]), "must be a map of a task's fields, not an empty list"),
    ];
    for (value, expected) in cases {
        assert_eq!(task(&value).unwrap_err(), expected, "{value}");
    }
    // Braces of other programs are not expressions.
    let format = json!({"name": "a", "command": "docker ps --format '{{.Names}}'"});
    assert!(task(&format).is_ok());
}

#[test]
fn a_change_of_a_task_keeps_the_fields_that_it_lacks() {
    let at = Timestamp::UNIX_EPOCH;
    let catalogue = Catalogue::builtin();
    let fields = task(&json!({
        "name": "a", "blocking": true, "backend": "exec", "action": "shell", "timeout": "1h", "selector": "group:web",
        "params": {"command": "true", "working_dir": "/srv", "env": {"A": "b"}}
    }));
    let fields = fields.unwrap();
    let cluster = ClusterRecord::new(ClusterId::DEFAULT, "default".to_owned(), String::new(), at);
    let id = TaskId(uuid::Uuid::from_u128(7));
    let cluster = edit::add(&cluster, id, fields.clone(), None, at).unwrap().cluster;
    let known = &cluster.list.tasks[0];
    let update = |value: &Value| read::update_of_json(value, known, &catalogue).unwrap();
    assert_eq!(update(&json!({})), fields);
    let renamed = update(&json!({"name": "b", "blocking": false, "selector": null}));
    let expected = TaskFields { name: "b".to_owned(), blocking: false, selector: None, ..fields.clone() };
    assert_eq!(renamed, expected);
    let other = update(&json!({"config": {"command": "false", "timeout_seconds": 60, "working_dir": ""}}));
    assert_eq!(other.timeout, Span::from_secs(60));
    assert_eq!(json!(*other.params), json!({"command": "false", "env": {"A": "b"}}));
    let replaced = update(&json!({"backend": "ping", "action": "ping"}));
    assert!(replaced.params.is_empty(), "params of another action do not stay");
    assert_eq!(update(&json!({"params": {"command": "x"}})).params.len(), 1);
}

#[test]
fn a_file_has_positions_and_unique_names() {
    let catalogue = Catalogue::builtin();
    let text = "tasks:\n  - name: install\n    command: apt-get install -y curl\n    blocking: true\n  \
                - {name: ping, backend: ping, action: ping, selector: group:web}\n";
    let tasks = read::parse_list(text, "tasks.yaml", &catalogue).unwrap();
    let names: Vec<&str> = tasks.iter().map(|task| task.name.as_str()).collect();
    assert_eq!(names, ["install", "ping"]);
    assert_eq!(read::parse_list("tasks: []", "tasks.yaml", &catalogue).unwrap(), []);
    let cases = [
        ("", "tasks.yaml:1:1: the file is empty; it needs a list of `tasks`, which may be empty"),
        (
            "tasks:\n- {name: a, command: x}\n- {name: a, command: y}\n",
            "tasks.yaml:3:10: tasks[1].name: the name `a` is already that of tasks[0]; names are unique",
        ),
        (
            "tasks:\n- {name: a, command: x, timeout: 5s}\n",
            "tasks.yaml:2:34: tasks[0].timeout: must be from 10s to 1d, not 5s",
        ),
        (
            "tasks:\n- {name: a, backend: ping, action: pong}\n",
            "tasks.yaml:2:36: tasks[0].action: backend `ping` has no action `pong`; did you mean `ping`? (actions: ping)",
        ),
        ("task: []\n", "tasks.yaml:1:1: the field `tasks` is missing; it may be an empty list"),
    ];
    for (text, expected) in cases {
        let problems = read::parse_list(text, "tasks.yaml", &catalogue).unwrap_err();
        let lines: Vec<String> = problems.iter().map(|problem| problem.render("tasks.yaml")).collect();
        assert!(lines.iter().any(|line| line == expected), "{lines:?}");
    }
}
