//! Tests refusals before anything is dispatched: all are reported at once, and a retried run is checked against the
//! current nodes.

use std::sync::Arc;

use downbeat_core::Timestamp;
use downbeat_core::backend::{Catalogue, Params};
use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::{Description, NodeRecord, NodeStatus};
use downbeat_core::plan::{NodeRef, Resolved, resolve, resolve_again};
use downbeat_core::spec::Definition;
use serde_json::{Value, json};

fn node(hostname: &str, backends: &[&str]) -> NodeRecord {
    let known = Catalogue::builtin().backends().to_vec();
    NodeRecord {
        id: NodeId::derive(ClusterId::DEFAULT, hostname),
        cluster: ClusterId::DEFAULT,
        session: SessionId(uuid::Uuid::nil()),
        description: Description {
            hostname: hostname.to_owned(),
            groups: Vec::new(),
            labels: Default::default(),
            capabilities: Default::default(),
            backends: known.into_iter().filter(|backend| backends.contains(&backend.name.as_str())).collect(),
            slots: 1,
            version: String::new(),
        },
        status: NodeStatus::Online,
        draining: false,
        registered_at: Timestamp::UNIX_EPOCH,
        seen_at: Timestamp::UNIX_EPOCH,
        installation: None,
        undelivered: Vec::new(),
        kept_since: None,
        displaced: None,
        problems: Vec::new(),
    }
}

fn nodes(list: &[(&str, &[&str])]) -> Vec<Arc<NodeRecord>> {
    list.iter().map(|(hostname, backends)| Arc::new(node(hostname, backends))).collect()
}

fn job(tasks: &Value) -> Definition {
    serde_json::from_value(json!({"target": "all", "tasks": tasks})).unwrap()
}

#[test]
fn a_refusal_names_everything_that_stands_in_the_way() {
    let tasks = json!([
        {"backend": "ping", "action": "ping"},
        {"backend": "test", "action": "sleep", "params": {"duration": "soon"}},
        {"backend": "test", "action": "echo", "params": {"message": 7, "more": 1}},
        {"backend": "exec", "action": "run", "params": {"command": "true"}},
    ]);
    let nodes = nodes(&[("a", &["ping", "test", "exec"]), ("b", &["ping"]), ("c", &["exec"])]);
    let unfit = resolve(&job(&tasks), &Params::new(), &nodes).unwrap_err();
    assert_eq!(
        unfit.message,
        "2 of the target nodes cannot do what the job asks; step 1 (test sleep) is refused on a: duration: `soon` is not a \
         duration; write a number and a unit: 500ms, 1.5s, 30m, 1h30m, 2d; step 2 (test echo) is refused on a: message: \
         must be a string, not the number 7; write it in quotes: \"7\"; more: action `echo` has no param `more`; params: \
         message; nothing was started"
    );
    let message = |hostname: &str| {
        let found = unfit.nodes.iter().find(|(node, _)| node == hostname);
        found.unwrap_or_else(|| panic!("{hostname} in {unfit:?}")).1.as_str()
    };
    assert_eq!(
        message("b"),
        "lacks backend `test`, lacks backend `exec` (its agent runs without --allow exec)"
    );
    assert_eq!(message("c"), "lacks backend `ping`, lacks backend `test`");
    assert!(message("a").starts_with("duration: "), "{unfit:?}");
    assert!(message("a").contains("; message: ") && message("a").contains("more: "), "{unfit:?}");
}

#[test]
fn a_target_that_matches_nothing_names_what_was_probably_meant() {
    let described = |hostname: &str, group: &str, zone: &str| {
        let mut node = node(hostname, &["test", "exec"]);
        node.description.groups = vec![group.to_owned()];
        node.description.labels = [("zone".to_owned(), zone.to_owned())].into();
        node.description.capabilities = [("cpu".to_owned(), json!(4))].into();
        Arc::new(node)
    };
    let nodes = [described("web-01", "web", "a"), described("db-01", "db", "b")];
    let message = |target: &str, nodes: &[Arc<NodeRecord>]| {
        let tasks = json!([{"backend": "test", "action": "noop"}]);
        let job: Definition = serde_json::from_value(json!({"target": target, "tasks": tasks})).unwrap();
        resolve(&job, &Params::new(), nodes).unwrap_err().message
    };
    for (target, expected) in [
        ("group:dbb", "no node is in group `dbb`; did you mean `db`? (groups: db, web)"),
        ("group:mail*", "no node is in group `mail*`; groups: db, web"),
        ("node:web-1", "no node is called `web-1`; did you mean `web-01`? (nodes: db-01, web-01)"),
        ("name = db", "no node is called `db`; nodes: db-01, web-01"),
        ("backend:exce", "no node offers the backend `exce`; did you mean `exec`? (backends: exec, test)"),
        ("label.zon = a", "no node has the label `zon`; did you mean `zone`? (labels: zone)"),
        ("label.zone = c", "no node has label `zone` = `c`; values: a, b"),
        ("capability.gpu", "no node has the capability `gpu`; did you mean `cpu`? (capabilities: cpu)"),
        ("capability.cpu = 8", "no node has capability `cpu` = `8`; values: 4"),
        ("capability.cpu >= 8", "the target `capability.cpu >= 8` matches no node"),
        (
            "group:web and label.zon",
            "the target `group:web and label.zon` matches no node: no node has the label `zon`; did you mean `zone`? \
             (labels: zone)",
        ),
        (
            "group:web and group:db",
            "the target `group:web and group:db` matches no node: no node fulfils all its conditions",
        ),
    ] {
        assert_eq!(message(target, &nodes), format!("{expected}; nothing was started"), "{target}");
    }
    assert_eq!(
        message("all", &[]),
        "the cluster has no nodes yet; start an agent with `downbeat agent`; nothing was started"
    );
}

#[test]
fn a_task_is_named_when_the_target_is_its_own_and_not_the_jobs() {
    let nodes = nodes(&[("a", &["test"])]);
    let message = |tasks: &Value| resolve(&job(tasks), &Params::new(), &nodes).unwrap_err().message;
    let noop = json!({"backend": "test", "action": "noop"});
    let named = json!({"name": "last", "target": "node:b", "backend": "test", "action": "noop"});
    let unnamed = json!({"target": "node:b", "backend": "test", "action": "noop"});
    let why = "no node is called `b`; nodes: a; nothing was started";
    assert_eq!(message(&json!([unnamed])), why);
    assert_eq!(message(&json!([noop, unnamed])), format!("tasks[1]: {why}"));
    assert_eq!(message(&json!([noop, named])), format!("task `last`: {why}"));
}

#[test]
fn drained_nodes_are_left_out_and_named() {
    let mut drained = node("b", &["test"]);
    drained.draining = true;
    let nodes = [Arc::new(drained), Arc::new(node("a", &["test"]))];
    let definition = job(&json!([{"backend": "test", "action": "noop"}]));
    let resolved = resolve(&definition, &Params::new(), &nodes).unwrap();
    let names = |nodes: &[NodeRef]| nodes.iter().map(|node| node.hostname.clone()).collect::<Vec<_>>();
    assert_eq!(
        (names(&resolved.nodes), names(&resolved.left_out)),
        (vec!["a".to_owned()], vec!["b".to_owned()])
    );

    let unfit = resolve(&definition, &Params::new(), &nodes[..1]).unwrap_err();
    assert_eq!(
        unfit.message,
        "the target `all` matches only drained nodes; `downbeat node undrain` lets a node take work again; nothing was \
         started"
    );
    assert_eq!(unfit.nodes, [("b".to_owned(), "is drained".to_owned())]);
}

#[test]
fn what_is_known_of_silent_nodes_is_said_of_each() {
    let with =
        |hostname: &str, status: NodeStatus| Arc::new(NodeRecord { status, ..node(hostname, &["test"]) });
    let nodes = [
        with("c", NodeStatus::Stale),
        with("b", NodeStatus::Offline),
        with("a", NodeStatus::Online),
        with("other", NodeStatus::Offline),
    ];
    let definition: Definition = serde_json::from_value(
        json!({"target": "not node:other", "tasks": [{"backend": "test", "action": "noop"}]}),
    )
    .unwrap();
    let resolved = resolve(&definition, &Params::new(), &nodes).unwrap();
    let message: Vec<(String, &str)> =
        resolved.silent_nodes(|id| nodes.iter().find(|node| node.id == id).map(|node| node.status));
    assert_eq!(
        message,
        [
            ("b".to_owned(), "is offline: its steps fail unless it is online when they start"),
            ("c".to_owned(), "is stale: its steps wait for it, and fail when it goes offline"),
        ]
    );
    let message = resolved.silent_nodes(|id| {
        nodes.iter().find(|node| node.id == id && node.status == NodeStatus::Online).map(|node| node.status)
    });
    let deleted = "was deleted: its steps fail";
    assert_eq!(message, [("b".to_owned(), deleted), ("c".to_owned(), deleted)]);
}

#[test]
fn a_run_that_is_tried_again_keeps_its_nodes_and_asks_them_what_they_can_do_today() {
    let all: &[&str] = &["test", "exec"];
    let definition = job(&json!([{"backend": "test", "action": "noop"}]));
    let former = resolve(&definition, &Params::new(), &nodes(&[("b", all), ("a", all)])).unwrap();
    let former = Resolved { waves: vec![1, 2], ..former };
    let again = |nodes: &[Arc<NodeRecord>]| resolve_again(&definition, &Params::new(), &former, nodes);

    let today = nodes(&[("c", all), ("b", all), ("a", all)]);
    assert_eq!(again(&today).unwrap(), former, "the target is not resolved again");

    let mut drained = node("a", all);
    drained.draining = true;
    let unfit = again(&[Arc::new(drained)]).unwrap_err();
    let expected =
        [("a", "is drained"), ("b", "is gone")].map(|(node, why)| (node.to_owned(), why.to_owned()));
    assert_eq!(unfit.nodes, expected);

    let unfit = again(&nodes(&[("a", &["exec"]), ("b", all)])).unwrap_err();
    assert_eq!(unfit.nodes, [("a".to_owned(), "lacks backend `test`".to_owned())]);
}

#[test]
fn resolving_stops_at_the_bound_of_instances() {
    let fleet: Vec<Arc<NodeRecord>> =
        (0..1_000).map(|i| Arc::new(node(&format!("n{i}"), &["test"]))).collect();
    let task = |i| json!({"backend": "test", "action": "noop", "target": format!("not node:x{i}")});
    let of = |count: usize| job(&json!((0..count).map(task).collect::<Vec<_>>()));
    let resolved = resolve(&of(1_000), &Params::new(), &fleet).unwrap();
    assert_eq!((resolved.sets.len(), resolved.nodes.len()), (1, 1_000), "equal sets are one");
    let unfit = resolve(&of(1_001), &Params::new(), &fleet).unwrap_err();
    assert!(unfit.message.contains("more than 1000000 step instances"), "{}", unfit.message);
}
