//! Owns small test values: each is derived from a number.

use std::collections::BTreeMap;
use std::sync::Arc;

use downbeat_core::backend::Params;
use downbeat_core::change::{Applied, Change, Refusal, Silence};
use downbeat_core::cluster::{ClusterEdit, ClusterRecord};
use downbeat_core::execution::{Decision, Execution, Lease, Outcome, State, Stream, Verdict};
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, NodeId, RunId, ServerId, SessionId, TaskId};
use downbeat_core::job::{JobKey, JobVersion, definition_hash};
use downbeat_core::node::{Description, Former, Installation, Registration};
use downbeat_core::plan::{NodeIx, NodeRef, Resolved, SetIx};
use downbeat_core::run::{RunEnd, RunLive, RunMade, RunRecord, RunStage, RunState};
use downbeat_core::standing::{Rerun, RerunScope, StandingList, StandingTask};
use downbeat_core::work::{Origin, Parent};
use downbeat_core::{Dice, Portion, debug};
use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

use crate::port::{Committed, OutputChunk, ServerRecord, Store};

/// All events, whatever their number and size.
pub const ALL_EVENTS: Portion = Portion::of_rows(usize::MAX);
pub const SERVER: ServerId = ServerId(Uuid::from_u128(0xface));
pub const UNKNOWN_CLUSTER: ClusterId = ClusterId(Uuid::from_u128(0xdead));

/// Returns a time `second` seconds into the tests, with microseconds as real times have.
pub fn at(second: i64) -> Timestamp {
    Timestamp::from_microsecond(1_800_000_000_000_123 + second * 1_000_000).expect("the time is valid")
}

fn id(kind: u128, number: u32) -> Uuid {
    Uuid::from_u128((kind << 64) | u128::from(number))
}

pub fn node(number: u32) -> NodeId {
    NodeId(id(1, number))
}

pub fn session(number: u32) -> SessionId {
    SessionId(id(2, number))
}

pub fn token(number: u32) -> LeaseToken {
    LeaseToken(id(3, number))
}

pub fn execution_id(number: u32) -> ExecutionId {
    ExecutionId(id(4, number))
}

pub fn server(number: u32) -> ServerId {
    ServerId(id(5, number))
}

pub fn run_id(number: u32) -> RunId {
    RunId::from(format!("run-{number:03}"))
}

pub fn cluster_id(number: u32) -> ClusterId {
    ClusterId(id(6, number))
}

pub fn task_id(number: u32) -> TaskId {
    TaskId(id(7, number))
}

/// The first version of a cluster without standing tasks.
pub fn cluster(number: u32) -> ClusterRecord {
    let name = format!("cluster-{number}");
    ClusterRecord::new(cluster_id(number), name, "for \"tests\"".to_owned(), at(i64::from(number)))
}

pub fn cluster_created(number: u32) -> Change {
    Change::ClusterCreated { cluster: cluster(number), by: "ada".to_owned(), at: at(i64::from(number)) }
}

pub fn cluster_changed(cluster: ClusterRecord) -> Change {
    let at = cluster.updated_at;
    Change::ClusterChanged { cluster, edit: ClusterEdit::Settings, by: "ada".to_owned(), at }
}

pub fn cluster_deleted(number: u32) -> Change {
    let (cluster, name, by) = (cluster_id(number), format!("cluster-{number}"), "ada".to_owned());
    Change::ClusterDeleted { cluster, name, by, at: at(99) }
}

pub fn job_key(number: u32) -> JobKey {
    JobKey::new(ClusterId::DEFAULT, format!("job-{number}"))
}

/// A version of a job. Each one differs.
pub fn job_version(key: JobKey, version: u32) -> JobVersion {
    let definition = serde_json::from_value(json!({
        "name": &*key.name, "timeout": format!("{version}m"), "schedule": [{"cron": "@hourly"}],
        "tasks": [{"backend": "test", "action": "echo", "params": {"text": "grüße \"ö\" \n \\"}}],
    }));
    let definition = Arc::new(definition.expect("the definition is valid"));
    let hash = definition_hash(&definition);
    let (version, at) = (u64::from(version), at(i64::from(version)));
    JobVersion { key, version, definition, hash, by: "ada".to_owned(), at }
}

pub fn job_applied(number: u32, version: u32) -> Change {
    Change::JobApplied { job: job_version(job_key(number), version), triggers_seen: None }
}

pub fn job_paused(number: u32, paused: bool) -> Change {
    Change::JobPauseSet { job: job_key(number), paused, by: "ada".to_owned(), at: at(60) }
}

pub fn job_deleted(number: u32) -> Change {
    Change::JobDeleted { job: job_key(number), by: "ada".to_owned(), at: at(61) }
}

/// Decides the schedules of a job between two seconds.
pub fn job_decided(number: u32, version: u64, from: i64, until: i64) -> Change {
    let (job, from, until) = (job_key(number), at(from), at(until));
    Change::JobDecided { job, version, from, until, skipped: Vec::new(), refused: Vec::new(), at: until }
}

pub fn standing_task(number: u32) -> StandingTask {
    let params = Params::from_iter([("command".to_owned(), json!("echo 'grüße'"))]);
    StandingTask {
        id: task_id(number),
        number,
        name: format!("task {number}"),
        blocking: number.is_multiple_of(2),
        backend: "shell".to_owned(),
        action: "run".to_owned(),
        params: Arc::new(params),
        timeout: "30m".parse().expect("the span is valid"),
        selector: None,
        created_at: at(1),
        updated_at: at(2),
        deleted_at: None,
        reruns: vec![Rerun { at: at(3), scope: RerunScope::Node { node: node(1) } }],
    }
}

/// The next version of a cluster, with these standing tasks.
pub fn with_tasks(cluster: &ClusterRecord, tasks: &[u32]) -> ClusterRecord {
    cluster.edited(at(50), |cluster| {
        let tasks = tasks.iter().map(|number| standing_task(*number)).collect();
        let resets = BTreeMap::from([(node(2), at(4))]);
        cluster.list = Arc::new(StandingList { tasks, next_number: 9, resets, ..StandingList::default() });
    })
}

/// Creates the standing run of a cluster.
pub fn standing_created(cluster: u32) -> Change {
    created_as(RunRecord::standing(cluster_id(cluster), SERVER, at(5)))
}

/// An attempt of a standing task on a node.
pub fn standing(number: u32, cluster: u32, step: u32, on: u32, attempt: u32, state: State) -> Execution {
    let run = RunId::standing(cluster_id(cluster));
    let of = Origin::Step { run, step, item: None };
    Execution { of, pinned: Some(node(on)), attempt, ..execution(number, 0, state) }
}

pub fn standing_added(cluster: u32, version: u64, executions: Vec<Execution>) -> Change {
    let run = RunId::standing(cluster_id(cluster));
    Change::ExecutionsAdded {
        run,
        epoch: 1,
        executions,
        rollout: None,
        version: Some(version),
        sessions: Vec::new(),
        after: None,
        at: at(10),
    }
}

/// Adds attempts of standing tasks that were decided for these sessions of their nodes.
pub fn standing_added_for(
    cluster: u32,
    version: u64,
    steps: impl IntoIterator<Item = (Execution, SessionId)>,
) -> Change {
    let (executions, decided_for): (Vec<Execution>, Vec<SessionId>) = steps.into_iter().unzip();
    let mut change = standing_added(cluster, version, executions);
    if let Change::ExecutionsAdded { sessions, .. } = &mut change {
        *sessions = decided_for;
    }
    change
}

/// Returns the id of an execution that was created at this second.
pub fn execution_id_at(second: i64) -> ExecutionId {
    ExecutionId(Dice::new(second.unsigned_abs()).uuid_at(at(second)))
}

/// Ends an attempt of a standing task.
pub fn standing_finished(cluster: u32, execution: u32, verdict: Verdict) -> Change {
    let of = Parent::Run(RunId::standing(cluster_id(cluster)));
    let (execution, token) = (execution_id(execution), token(execution));
    Change::ExecutionFinished { of, execution, token, outcome: outcome(verdict) }
}

/// Returns the id of a debug command.
pub fn debug_id(number: u32) -> RunId {
    RunId::debug(id(8, number))
}

/// Returns the creation of a debug command that starts at once.
pub fn debug_created(number: u32) -> [Change; 2] {
    let run = RunMade { id: debug_id(number), job: Some(debug::JOB.to_owned()), ..made(number) };
    let started = debug_moved(number, &[RunState::Starting, RunState::Running], i64::from(number));
    [created_as(RunRecord::new(run, SERVER)), started]
}

pub fn debug_moved(number: u32, path: &[RunState], second: i64) -> Change {
    match moved(number, path, second) {
        Change::RunMoved { epoch, path, stop, end, at, .. } => {
            Change::RunMoved { room: None, run: debug_id(number), epoch, path, stop, end, at }
        }
        other => other,
    }
}

pub fn registration(number: u32, session: SessionId, second: i64) -> Registration {
    let description: Description = serde_json::from_value(json!({
        "hostname": format!("web-{number:02}"),
        "groups": ["web"],
        "labels": {"disk": "ssd"},
        "capabilities": {"cpu": 8, "gpu": "nvidia"},
        "slots": 4,
        "version": "1",
    }))
    .expect("the description is valid");
    Registration {
        node: node(number),
        cluster: ClusterId::DEFAULT,
        session,
        description,
        installation: None,
        undelivered: Vec::new(),
        kept_since: None,
        attempts: Vec::new(),
        former: Former::Any,
        at: at(second),
    }
}

/// The same, for an installation that still has the result of an execution, with a guard.
pub fn registration_of(number: u32, session: SessionId, second: i64, former: Former) -> Registration {
    Registration {
        installation: Some(Installation::new(b"installation", 1)),
        undelivered: vec![execution_id(1)],
        kept_since: None,
        attempts: vec![(1, 7)],
        former,
        ..registration(number, session, second)
    }
}

pub fn deleted(number: u32, session: SessionId, second: i64) -> Change {
    Change::NodeDeleted {
        node: node(number),
        session,
        by: "ada".to_owned(),
        silent_since: None,
        at: at(second),
    }
}

pub fn problems(number: u32, session: SessionId, problems: &[&str]) -> Change {
    let problems = problems.iter().map(|&problem| problem.to_owned()).collect();
    Change::NodeProblemsSet { node: node(number), session, problems, at: at(60) }
}

pub fn registered(number: u32, session: SessionId, second: i64) -> Change {
    Change::NodeRegistered { registration: registration(number, session, second) }
}

/// Registers a node in a cluster.
pub fn registered_in(number: u32, cluster: u32, second: i64) -> Change {
    let registration =
        Registration { cluster: cluster_id(cluster), ..registration(number, session(number), second) };
    Change::NodeRegistered { registration }
}

/// A waiting run, owned by [`SERVER`] with epoch 1, created at its number in seconds.
pub fn run(number: u32) -> RunRecord {
    made_as(made(number))
}

pub fn made_as(made: RunMade) -> RunRecord {
    RunRecord::new(made, SERVER)
}

/// A run with this live part.
pub fn living(number: u32, live: RunLive) -> RunRecord {
    RunRecord { live, ..run(number) }
}

/// A run in this state. If it has ended, it ended at 8 seconds.
pub fn run_in(number: u32, state: RunState) -> RunRecord {
    let mut run = run(number);
    run.live.stage = RunStage::of(state, false, Some((at(8), RunEnd::default()))).expect("the end is given");
    run
}

/// The part of a run that never changes.
pub fn made(number: u32) -> RunMade {
    let definition = serde_json::from_value(json!({
        "tasks": [{"backend": "test", "action": "echo", "params": {"text": "grüße \"ö\" \n \\"}}],
    }))
    .expect("the definition is valid");
    let resolved = Resolved {
        nodes: vec![NodeRef { id: node(1), hostname: "web-01".to_owned() }],
        sets: vec![vec![NodeIx(0)]],
        entries: vec![Some(SetIx(0))],
        ..Resolved::default()
    };
    RunMade {
        id: run_id(number),
        cluster: ClusterId::DEFAULT,
        job: None,
        definition: Arc::new(definition),
        resolved: Arc::new(resolved),
        by: "ada".to_owned(),
        idempotency_key: None,
        request_hash: None,
        created_at: at(i64::from(number)),
        params: Default::default(),
        retry_of: None,
        no_cache: false,
        job_version: None,
    }
}

pub fn created(number: u32) -> Change {
    created_as(run(number))
}

pub fn created_as(run: RunRecord) -> Change {
    Change::RunCreated { run, max_pending: None, max_open: None, firing: None }
}

/// Creates a run with an idempotency key.
pub fn created_with_key(number: u32, key: &str) -> Change {
    created_as(made_as(RunMade { idempotency_key: Some(key.to_owned()), ..made(number) }))
}

pub fn moved(number: u32, path: &[RunState], second: i64) -> Change {
    Change::RunMoved {
        room: None,
        run: run_id(number),
        epoch: 1,
        path: path.to_vec(),
        stop: None,
        end: None,
        at: at(second),
    }
}

/// Admits a run that holds these nodes.
pub fn admitted(number: u32, limit: Option<u32>, nodes: &[u32]) -> Change {
    let nodes = nodes.iter().map(|&number| node(number)).collect();
    Change::RunAdmitted { run: run_id(number), epoch: 1, limit, nodes, at: at(15) }
}

pub fn lease(number: u32, on: u32) -> Lease {
    Lease { token: token(number), node: node(on), session: session(on), granted_at: at(20) }
}

pub fn pending() -> State {
    State::Pending { not_before: None }
}

pub fn leased(number: u32, on: u32) -> State {
    State::Leased { lease: lease(number, on), stop: false }
}

pub fn outcome(verdict: Verdict) -> Outcome {
    let (exit_code, error) = match verdict {
        Verdict::Succeeded => (Some(0), None),
        Verdict::Failed => (Some(-7), Some("it broke".to_owned())),
        Verdict::Cancelled => (None, Some("cancelled".to_owned())),
    };
    let outputs = Params::new();
    let (started_at, finished_at, received_at) = (at(30), at(31), Some(at(32)));
    Outcome { verdict, exit_code, error, outputs, started_at, finished_at, received_at }
}

pub fn outcome_with_outputs() -> Outcome {
    let outputs = Params::from([("version".to_owned(), json!("1.2 'ü' \0")), ("n".to_owned(), json!(7))]);
    Outcome { outputs, ..outcome(Verdict::Succeeded) }
}

pub fn origin(of: u32, step: u32, item: Option<u32>) -> Origin {
    Origin::Step { run: run_id(of), step, item }
}

/// An execution of step 0, first attempt, not pinned.
pub fn execution(number: u32, of: u32, state: State) -> Execution {
    Execution {
        id: execution_id(number),
        of: origin(of, 0, None),
        pinned: None,
        attempt: 1,
        created_at: at(10),
        state,
        params: Default::default(),
        reused: None,
        limits: None,
        cache_key: None,
        former: None,
        failed_for_good: None,
        round: 1,
    }
}

pub fn added(run: u32, executions: Vec<Execution>) -> Change {
    Change::ExecutionsAdded {
        run: run_id(run),
        epoch: 1,
        executions,
        rollout: None,
        version: None,
        sessions: Vec::new(),
        after: None,
        at: at(10),
    }
}

pub fn granted(run: u32, execution: u32, lease: Lease) -> Change {
    Change::ExecutionLeased { of: Parent::Run(run_id(run)), execution: execution_id(execution), lease }
}

pub fn started(run: u32, execution: u32, by: u32, second: i64) -> Change {
    let (of, execution, token) = (Parent::Run(run_id(run)), execution_id(execution), token(by));
    Change::ExecutionStarted { of, execution, token, at: at(second), received_at: None }
}

pub fn finished(run: u32, execution: u32, by: u32, verdict: Verdict) -> Change {
    finished_with(run, execution, by, outcome(verdict))
}

pub fn finished_with(run: u32, execution: u32, by: u32, outcome: Outcome) -> Change {
    let (of, execution, token) = (Parent::Run(run_id(run)), execution_id(execution), token(by));
    Change::ExecutionFinished { of, execution, token, outcome }
}

pub fn lost(run: u32, execution: u32, by: u32, silence: Option<Silence>, second: i64) -> Change {
    let (of, execution, token) = (Parent::Run(run_id(run)), execution_id(execution), token(by));
    Change::ExecutionLost { of, execution, token, silence, reason: "silence".to_owned(), at: at(second) }
}

pub fn stop_requested(run: u32, execution: u32, epoch: u64, second: i64) -> Change {
    let (run, execution, reason) = (run_id(run), execution_id(execution), "enough".to_owned());
    Change::ExecutionCancelRequested { run, execution, epoch, reason, at: at(second) }
}

pub fn given_up(run: u32, execution: u32, epoch: u64, second: i64) -> Change {
    let (run, execution, error) = (run_id(run), execution_id(execution), "no node fits".to_owned());
    Change::ExecutionGivenUp { run, execution, epoch, error, at: at(second) }
}

pub fn skipped(run: u32, execution: u32, epoch: u64, second: i64) -> Change {
    let (run, execution, reason) = (run_id(run), execution_id(execution), "another failed".to_owned());
    Change::ExecutionSkipped { run, execution, epoch, reason, at: at(second) }
}

pub fn decided(run: u32, execution: u32, approved: bool, second: i64) -> Change {
    let decision = decision(approved);
    Change::ApprovalDecided { run: run_id(run), execution: execution_id(execution), decision, at: at(second) }
}

pub fn decision(approved: bool) -> Decision {
    Decision { approved, reason: Some("because".to_owned()), by: "ada".to_owned() }
}

pub fn failed_for_good(run: u32, execution: u32, epoch: u64) -> Change {
    Change::InstanceFailed {
        run: run_id(run),
        epoch,
        execution: execution_id(execution),
        step: 0,
        node: None,
        item: None,
        reason: "no retries are left".to_owned(),
        rollout: None,
        at: at(61),
    }
}

pub fn chunk(of: u32, offset: u64, text: &str) -> OutputChunk {
    let (execution, stream) = (execution_id(of), Stream::Stderr);
    OutputChunk { execution, offset, stream, text: text.to_owned(), at: at(30) }
}

pub fn server_record(number: u32, name: &str, seen: i64) -> ServerRecord {
    ServerRecord {
        id: server(number),
        name: name.to_owned(),
        http: "127.0.0.1:1".to_owned(),
        grpc: "127.0.0.1:2".to_owned(),
        version: "0.1".to_owned(),
        started_at: at(1),
        seen_at: at(seen),
        level: 1,
    }
}

pub async fn read_run(store: &Arc<dyn Store>, number: u32) -> RunRecord {
    store.run(&run_id(number)).await.unwrap().expect("the run exists")
}

pub async fn commit(store: &Arc<dyn Store>, changes: &[Change]) -> Committed {
    store.commit(SERVER, changes).await.expect("the store commits a batch")
}

pub async fn try_one(store: &Arc<dyn Store>, change: Change) -> Applied {
    commit(store, &[change]).await.outcomes.remove(0)
}

/// Commits a batch; all changes must be applied.
pub async fn apply(store: &Arc<dyn Store>, changes: &[Change]) {
    let outcomes = commit(store, changes).await.outcomes;
    for (change, outcome) in changes.iter().zip(outcomes) {
        assert_eq!(outcome, Ok(()), "{change:?}");
    }
}

/// Commits one change, which must be refused.
pub async fn refuse(store: &Arc<dyn Store>, change: Change, refusal: Refusal) {
    assert_eq!(try_one(store, change.clone()).await, Err(refusal), "{change:?}");
}
