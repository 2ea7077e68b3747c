//! Tests which expressions are refused before anything is dispatched.

use std::collections::BTreeMap;
use std::sync::Arc;

use downbeat_core::Timestamp;
use downbeat_core::backend::{Catalogue, ParamKind, Params};
use downbeat_core::expr;
use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::{Description, NodeRecord, NodeStatus};
use downbeat_core::plan::{Resolved, Unfit, resolve};
use downbeat_core::spec::{self, Definition};
use serde_json::{Value, json};

/// Returns db-0 and web-0 to web-2; all except web-2 have a rack.
fn nodes() -> Vec<Arc<NodeRecord>> {
    let names = [("db-0", "db"), ("web-0", "web"), ("web-1", "web"), ("web-2", "web")];
    names.iter().map(|(hostname, group)| Arc::new(node(hostname, group))).collect()
}

fn node(hostname: &str, group: &str) -> NodeRecord {
    let racks: BTreeMap<String, String> = if hostname == "web-2" {
        BTreeMap::new()
    } else {
        [("rack".to_owned(), format!("r-{hostname}"))].into()
    };
    NodeRecord {
        id: NodeId::derive(ClusterId::DEFAULT, hostname),
        cluster: ClusterId::DEFAULT,
        session: SessionId(uuid::Uuid::from_u128(1)),
        description: Description {
            hostname: hostname.to_owned(),
            groups: vec![group.to_owned()],
            labels: racks,
            capabilities: [("cpu".to_owned(), json!(4))].into(),
            backends: Catalogue::builtin().backends().to_vec(),
            slots: 4,
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

fn definition(job: &Value) -> Definition {
    let problems = |problems: Vec<spec::Problem>| panic!("{job}: {problems:?}");
    spec::from_json(job, &Catalogue::builtin()).unwrap_or_else(problems)
}

fn resolved(job: &Value, given: Value) -> Result<Resolved, Unfit> {
    let definition = definition(job);
    let params = spec::resolve_params(&definition, &serde_json::from_value(given).unwrap()).unwrap();
    resolve(&definition, &params, &nodes())
}

/// Returns the message and the nodes' reasons, in one text.
fn refusal(job: &Value, given: Value) -> String {
    let unfit = resolved(job, given).map(|_| ()).expect_err(&job.to_string());
    let nodes: Vec<String> = unfit.nodes.iter().map(|(node, why)| format!("\n  {node}: {why}")).collect();
    format!("{}{}", unfit.message, nodes.concat())
}

fn echo(message: &str) -> Value {
    json!({"backend": "test", "action": "echo", "params": {"message": message}})
}

fn sleep(duration: &str) -> Value {
    json!({"backend": "test", "action": "sleep", "params": {"duration": duration}})
}

#[expect(clippy::needless_pass_by_value, reason = "what is made in place reads better")]
fn with(mut task: Value, more: Value) -> Value {
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    task
}

fn build(more: Value) -> Value {
    with(json!({"name": "build", "backend": "test", "action": "noop", "outputs": ["version"]}), more)
}

const VERSION: &str = "{{ steps.build.outputs.version }}";

#[test]
fn waves_are_settled_with_the_nodes() {
    let job = json!({"target": "all", "rollout": {"batch": [1, "50%"]}, "tasks": [echo("x"), echo("y")]});
    assert_eq!(resolved(&job, json!({})).unwrap().waves, [1, 3, 4]);
    assert!(resolved(&json!({"target": "all", "tasks": [echo("x")]}), json!({})).unwrap().waves.is_empty());
}

#[test]
fn whose_outputs_are_meant_is_clear_or_refused() {
    let all = |tasks: Value| json!({"target": "group:web", "tasks": tasks});
    for job in [
        all(json!([build(json!({})), echo(VERSION)])),
        all(json!([build(json!({"target": "all"})), echo(VERSION)])),
        all(json!([build(json!({"target": "node:db-0"})), echo(VERSION)])),
        all(json!([build(json!({"placement": {}})), echo(VERSION)])),
        all(json!([build(json!({"target": "node:web-1"})), with(echo(VERSION), json!({"placement": {}}))])),
        all(json!([build(json!({})), echo("{{ steps.build.nodes['web-1'].outputs.version }}")])),
        all(json!([build(json!({})), echo("{{ steps.build.nodes[node.hostname].outputs.version }}")])),
        all(json!([{"tasks": [build(json!({})), echo(VERSION)]}])),
    ] {
        let outcome = resolved(&job, json!({}));
        assert!(outcome.is_ok(), "{job}: {outcome:?}");
    }
    for (job, expected) in [
        (
            all(json!([build(json!({})), with(echo(VERSION), json!({"target": "all"}))])),
            "step 1 (test echo) is refused: message: `steps.build.outputs.version`: `build` does not run \
             on 1 of this task's nodes; choose a node: steps.build.nodes[\"web-0\"].outputs; nothing was \
             started\n  db-0: does not run `build`",
        ),
        (
            all(json!([build(json!({})), with(echo(VERSION), json!({"placement": {}}))])),
            "step 1 (test echo) is refused: message: `steps.build.outputs.version`: `build` runs on 3 \
             nodes, and this task on one; choose a node: steps.build.nodes[\"web-0\"].outputs; nothing \
             was started",
        ),
        (
            all(json!([build(json!({})), echo("{{ steps.build.nodes['db-0'].outputs.version }}")])),
            "step 1 (test echo) is refused: message: `steps.build.nodes['db-0'].outputs.version`: \
             `build` does not run on `db-0`; nothing was started",
        ),
    ] {
        assert_eq!(refusal(&job, json!({})), expected);
    }
}

#[test]
fn the_nodes_of_a_placed_step_are_not_asked_for() {
    let nodes = echo("{{ steps.build.nodes['db-0'].outputs.version }}");
    let job = json!({"target": "all", "tasks": [build(json!({"placement": {}})), nodes]});
    let problems = spec::from_json(&job, &Catalogue::builtin()).unwrap_err();
    assert_eq!(
        problems[0].message,
        "`steps.build.nodes['db-0'].outputs.version`: `build` is placed and runs once; write steps.build.outputs"
    );
}

#[test]
fn params_that_come_out_wrong_are_refused_before_anything_starts() {
    let job = |task: Value| json!({"name": "j", "target": "all", "params": {"x": "1s", "n": 1}, "tasks": [build(json!({})), task]});
    for (task, given, expected) in [
        (
            sleep("{{ params.x }}"),
            json!({"x": "soon"}),
            "step 1 (test sleep) is refused: duration: `soon` is not a duration; write a number and a \
             unit: 500ms, 1.5s, 30m, 1h30m, 2d; nothing was started",
        ),
        (
            echo("{{ params.n }}"),
            json!({}),
            "step 1 (test echo) is refused: message: must be a string, not the number 1; write it in \
             quotes: \"1\"; nothing was started",
        ),
        (
            echo("{{ params.n | upper }}"),
            json!({}),
            "step 1 (test echo) is refused: message: in `{{ params.n | upper }}`: `upper` expects a string, \
             not a number; `string` converts to one; nothing was started",
        ),
        (
            sleep("{{ node.labels.rack }}"),
            json!({}),
            "step 1 (test sleep) is refused on 4 of its nodes; nothing was started",
        ),
        (
            echo("{{ node.labels.rack }}"),
            json!({}),
            "step 1 (test echo) is refused on web-2: message: `node.labels.rack` has no value on this node; nothing was \
             started",
        ),
        (
            echo("{{ steps.build.outputs.version }} {{ node.labels.rack }}"),
            json!({}),
            "step 1 (test echo) is refused on web-2: message: `node.labels.rack` has no value on this node; nothing was \
             started",
        ),
    ] {
        let found = refusal(&job(task), given);
        let found = found.split("\n  db-0").next().unwrap().to_owned();
        assert!(found.starts_with(expected), "{found}\n{expected}");
    }
    for task in [
        sleep("{{ params.x }}"),
        echo("{{ params.n }}!"),
        echo("{{ node.labels.rack | default('none') }} {{ run.job }} {{ run.id }}"),
        json!({"backend": "exec", "action": "run", "params": {"command": ["x", VERSION], "env": {"A": "{{ node.capabilities.cpu }}"}}}),
        sleep("{{ steps.build.outputs.version }}"),
        with(sleep("{{ params.x }}"), json!({"placement": {}})),
    ] {
        let outcome = resolved(&job(task.clone()), json!({}));
        assert!(outcome.is_ok(), "{task}: {outcome:?}");
    }
    let nul = json!({"backend": "exec", "action": "run", "params": {"command": "x", "env": {"A": "{{ params.x }}\u{0}"}}});
    assert!(spec::from_json(&job(nul), &Catalogue::builtin()).is_err(), "it is found when the job is read");
    let placed = json!({"params": {"x": "1s"}, "tasks": [sleep("{{ params.x }}")]});
    assert!(refusal(&placed, json!({"x": "soon"})).contains("`soon` is not a duration"));
}

#[test]
fn what_a_node_declares_itself_is_checked_by_its_own_schema() {
    let mut nodes = nodes();
    let strict = Arc::make_mut(&mut nodes[3]);
    let backend = strict.description.backends.iter_mut().find(|backend| backend.name == "test").unwrap();
    let echo_action = Arc::make_mut(backend).actions.iter_mut().find(|action| action.name == "echo").unwrap();
    echo_action.params[0].kind = ParamKind::Integer;
    let definition = definition(&json!({"target": "all", "tasks": [echo("{{ node.hostname }}")]}));
    let unfit = resolve(&definition, &Params::new(), &nodes).unwrap_err();
    assert_eq!(
        unfit.nodes,
        [("web-2".to_owned(), "message: must be a whole number, not the string \"web-2\"".to_owned())]
    );
}

#[test]
fn no_more_than_a_hundred_nodes_are_named() {
    let nodes: Vec<Arc<NodeRecord>> =
        (0..300).map(|index| Arc::new(node(&format!("n-{index}"), "web"))).collect();
    let definition = definition(&json!({"target": "all", "tasks": [echo("{{ node.labels.zone }}")]}));
    let unfit = resolve(&definition, &Params::new(), &nodes).unwrap_err();
    assert_eq!(unfit.nodes.len(), 100);
    assert!(unfit.message.contains("on at least 100 of its nodes"), "{}", unfit.message);
}

#[test]
fn a_value_is_never_taken_for_two_arguments() {
    let job = json!({
        "params": {"what": "a; rm -rf / \"x"},
        "tasks": [{"backend": "exec", "action": "run", "params": {"command": "echo --x={{ params.what }} \"{{ params.what }} y\""}}]
    });
    let definition = definition(&job);
    let scope = expr::Scope {
        event: None,
        item: None,
        run: (&json!({})).into(),
        params: (&json!(definition.params)).into(),
        node: None,
        steps: BTreeMap::new(),
    };
    let params = &definition.tasks[0].leaves()[0].params;
    let rendered = expr::Template::of("exec", "run", params).unwrap().unwrap().render(&scope).unwrap();
    assert_eq!(rendered["command"], json!(["echo", "--x=a; rm -rf / \"x", "a; rm -rf / \"x y"]));
}

#[test]
fn a_job_asks_for_the_level_that_it_needs() {
    let level = |job: Value| definition(&job).level();
    assert_eq!(level(json!({"target": "all", "tasks": [echo("x")]})), 1);
    for job in [
        json!({"target": "all", "rollout": {"batch": 1}, "tasks": [echo("x")]}),
        json!({"target": "all", "exclusive": true, "tasks": [echo("x")]}),
        json!({"priority": 1, "tasks": [echo("x")]}),
        json!({"params": {"x": 1}, "tasks": [echo("x")]}),
        json!({"tasks": [with(echo("x"), json!({"outputs": ["x"]}))]}),
        json!({"tasks": [{"tasks": [echo("{{ run.id }}")]}], "target": "all"}),
    ] {
        assert_eq!(level(job.clone()), 2, "{job}");
    }
}

#[test]
fn a_chain_of_ten_thousand_tasks_that_all_look_back_is_checked() {
    let tasks: Vec<Value> = (0..10_000_u32)
        .map(|index| match index {
            0 => build(json!({})),
            _ => {
                let before = if index == 1 { "build".to_owned() } else { format!("t{}", index - 1) };
                with(echo(VERSION), json!({"name": format!("t{index}"), "depends_on": [before]}))
            }
        })
        .collect();
    let job = json!({"tasks": tasks});
    assert!(resolved(&job, json!({})).is_ok());
}
