//! What is refused before anything is dispatched: all of it at once, and by today's nodes when a run is tried again.

use std::sync::Arc;

use downbeat_core::Timestamp;
use downbeat_core::backend::{Catalogue, Params};
use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::{Description, NodeRecord, NodeStatus};
use downbeat_core::plan::{resolve, resolve_again};
use downbeat_core::run::Resolved;
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
        "2 of the target nodes cannot do what the job asks; the params of step 1 (test sleep) are refused; the params \
         of step 2 (test echo) are refused; nothing was started"
    );
    let told = |hostname: &str| {
        let found = unfit.nodes.iter().find(|(node, _)| node == hostname);
        found.unwrap_or_else(|| panic!("{hostname} in {unfit:?}")).1.as_str()
    };
    assert_eq!(told("b"), "lacks backend `test`, lacks backend `exec` (its agent runs without --allow exec)");
    assert_eq!(told("c"), "lacks backend `ping`, lacks backend `test`");
    assert!(told("a").starts_with("step 1: duration: "), "{unfit:?}");
    assert!(told("a").contains("; step 2: message: ") && told("a").contains("more: "), "{unfit:?}");
}

#[test]
fn a_run_that_is_tried_again_keeps_its_nodes_and_asks_them_what_they_can_do_today() {
    let all: &[&str] = &["test", "exec"];
    let definition = job(&json!([{"backend": "test", "action": "noop"}]));
    let former = resolve(&definition, &Params::new(), &nodes(&[("b", all), ("a", all)])).unwrap();
    let former = Resolved { waves: vec![1, 2], ..former };
    let again = |nodes: &[Arc<NodeRecord>]| resolve_again(&definition, &Params::new(), &former, nodes);

    let today = nodes(&[("c", all), ("b", all), ("a", all)]);
    assert_eq!(again(&today).unwrap(), former, "the target is not asked anew");

    let mut drained = node("a", all);
    drained.draining = true;
    let unfit = again(&[Arc::new(drained)]).unwrap_err();
    let expected =
        [("a", "is drained"), ("b", "is gone")].map(|(node, why)| (node.to_owned(), why.to_owned()));
    assert_eq!(unfit.nodes, expected);

    let unfit = again(&nodes(&[("a", &["exec"]), ("b", all)])).unwrap_err();
    assert_eq!(unfit.nodes, [("a".to_owned(), "lacks backend `test`".to_owned())]);
}
