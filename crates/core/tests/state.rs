//! Tests the stored state without a store: the effect of a batch on the tables. `downbeat_store::conformance` tests
//! every store for the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use downbeat_core::change::{Change, Refusal};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId};
use downbeat_core::plan::Resolved;
use downbeat_core::run::{RunMade, RunRecord, RunState};
use downbeat_core::spec::{Limit, Limits};
use downbeat_core::state::{ClusterLive, LimitUses, Tables};
use downbeat_core::{Span, Timestamp};
use serde_json::json;
use uuid::Uuid;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn run(name: &str) -> RunRecord {
    let definition = json!({"tasks": [{"backend": "test", "action": "noop"}]});
    let made = RunMade {
        id: RunId::from(name),
        cluster: ClusterId::DEFAULT,
        job: None,
        definition: Arc::new(serde_json::from_value(definition).unwrap()),
        resolved: Arc::new(Resolved::default()),
        params: BTreeMap::new(),
        retry_of: None,
        no_cache: false,
        job_version: None,
        by: "test".to_owned(),
        idempotency_key: None,
        request_hash: None,
        created_at: at(1),
    };
    RunRecord::new(made, ServerId(Uuid::nil()))
}

fn created(name: &str, max_pending: Option<u32>) -> Change {
    Change::RunCreated { run: run(name), max_pending, max_open: None, firing: None }
}

fn admitted(name: &str, limit: Option<u32>, nodes: &[u128]) -> Change {
    let nodes = nodes.iter().map(|node| NodeId(Uuid::from_u128(*node))).collect();
    Change::RunAdmitted { run: RunId::from(name), epoch: 1, limit, nodes, at: at(2) }
}

fn moved(name: &str, path: &[RunState]) -> Change {
    Change::RunMoved {
        room: None,
        run: RunId::from(name),
        epoch: 1,
        path: path.to_vec(),
        stop: None,
        end: None,
        at: at(3),
    }
}

#[test]
fn only_runs_of_the_same_cluster_take_room() {
    let other = ClusterId(Uuid::from_u128(7));
    let mut tables = Tables::new();
    tables.clusters.insert(other, ClusterLive { name: "other".to_owned(), version: 1 });
    let there = |name: &str| {
        let mut run = run(name);
        Arc::make_mut(&mut run.made).cluster = other;
        Change::RunCreated { run, max_pending: Some(1), max_open: Some(2), firing: None }
    };
    let mut one = |change| tables.apply_all(&[change]).outcomes.remove(0);
    assert_eq!(one(created("a", Some(1))), Ok(()));
    assert_eq!(one(there("b")), Ok(()));
    assert_eq!(one(there("c")), Err(Refusal::QueueFull { pending: 1 }));
    assert_eq!(one(admitted("a", Some(1), &[])), Ok(()));
    assert_eq!(one(admitted("b", Some(1), &[])), Ok(()));
    assert_eq!(one(there("c")), Ok(()));
    assert_eq!(one(admitted("c", Some(1), &[])), Err(Refusal::NoRoom { running: 1 }));
    assert_eq!(one(admitted("c", Some(2), &[])), Ok(()));
    assert_eq!(one(there("d")), Err(Refusal::TooManyOpen { open: 2 }));
}

#[test]
fn a_batch_is_applied_by_kind_and_numbered_without_gaps() {
    let mut tables = Tables::new();
    let batch = [moved("a", &[RunState::Starting]), created("a", None), created("a", None)];
    let verdicts = tables.apply_all(&batch);
    assert_eq!(verdicts.outcomes, [Ok(()), Ok(()), Err(Refusal::RunExists(RunId::from("a")))]);
    assert_eq!(verdicts.seqs(7), [Some(9), Some(8), None]);
}

#[test]
fn runs_wait_are_let_in_while_there_is_room_and_hold_their_nodes_to_the_end() {
    let mut tables = Tables::new();
    let mut one = |change| tables.apply_all(&[change]).outcomes.remove(0);
    assert_eq!(one(created("a", Some(2))), Ok(()));
    assert_eq!(one(created("b", Some(2))), Ok(()));
    assert_eq!(one(created("c", Some(2))), Err(Refusal::QueueFull { pending: 2 }));
    assert_eq!(one(admitted("a", Some(1), &[1])), Ok(()));
    assert_eq!(one(admitted("b", Some(1), &[])), Err(Refusal::NoRoom { running: 1 }));
    assert_eq!(one(admitted("b", None, &[1])), Err(Refusal::NodeHeld(RunId::from("a"))));
    assert_eq!(one(moved("a", &[RunState::Cancelled])), Ok(()));
    assert_eq!(one(admitted("b", Some(1), &[1])), Ok(()));
    assert_eq!(one(admitted("b", None, &[])), Err(Refusal::WrongState));
}

/// Otherwise two exclusive runs could wait for each other: one for the node, and the other for its turn.
#[test]
fn a_run_that_is_pending_again_gives_back_its_room_and_its_nodes() {
    use RunState::{Pending, Retrying, Running, Starting, Terminating};
    let mut tables = Tables::new();
    let mut one = |change| tables.apply_all(&[change]).outcomes.remove(0);
    assert_eq!(one(created("a", Some(2))), Ok(()));
    assert_eq!(one(created("b", Some(2))), Ok(()));
    assert_eq!(one(admitted("a", Some(1), &[1])), Ok(()));
    assert_eq!(one(moved("a", &[Starting, Running, Terminating, Retrying])), Ok(()));
    assert_eq!(one(admitted("b", Some(1), &[])), Err(Refusal::NoRoom { running: 1 }));
    assert_eq!(one(admitted("b", None, &[1])), Err(Refusal::NodeHeld(RunId::from("a"))));
    assert_eq!(one(moved("a", &[Pending])), Ok(()));
    assert_eq!(one(admitted("b", Some(1), &[1])), Ok(()));
    assert_eq!(one(admitted("a", None, &[1])), Err(Refusal::NodeHeld(RunId::from("b"))));
}

#[test]
fn a_limit_has_room_until_its_number_is_taken() {
    let mut uses = LimitUses::default();
    let limits: Limits =
        [("db".to_owned(), Limit::AtOnce(1)), ("api".to_owned(), Limit::Rate(2, Span::from_secs(60)))].into();
    let execution = |number: u128| ExecutionId(Uuid::from_u128(number));
    let mut take = |number, second| uses.take(ClusterId::DEFAULT, execution(number), &limits, at(second));
    assert_eq!(take(1, 10), Ok(()));
    assert_eq!(take(2, 11), Err(Refusal::LimitReached("db".to_owned())));
    uses.give_back(ClusterId::DEFAULT, execution(1), &limits, at(10));
    // A refused lease used nothing, so the rate has one use.
    let mut take = |number, second| uses.take(ClusterId::DEFAULT, execution(number), &limits, at(second));
    assert_eq!(take(3, 12), Ok(()));
    uses.give_back(ClusterId::DEFAULT, execution(3), &limits, at(12));
    let mut take = |number, second| uses.take(ClusterId::DEFAULT, execution(number), &limits, at(second));
    assert_eq!(take(4, 13), Err(Refusal::LimitReached("api".to_owned())));
    assert_eq!(take(4, 70), Ok(()));
    uses.forget(at(200));
    assert_eq!(uses.list().iter().map(|used| used.key.as_str()).collect::<Vec<_>>(), ["db"]);
}
