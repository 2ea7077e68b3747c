//! The board without a server: what it claims, releases and assigns.

use std::collections::BTreeMap;
use std::sync::Arc;

use downbeat_core::backend::Catalogue;
use downbeat_core::change::About;
use downbeat_core::collections::HashSet;
use downbeat_core::execution::{Execution, Lease, State};
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, NodeId, RunId, ServerId, SessionId};
use downbeat_core::node::{Description, NodeRecord, NodeStatus};
use downbeat_core::plan::{Plan, resolve};
use downbeat_core::spec::Definition;
use downbeat_core::work::{Origin, Parent, Work};
use downbeat_core::{Change, Dice, Event, Timestamp};
use downbeat_proto::message::{Free, LeaseRef, PollAnswer, WorkKind};
use jiff::SignedDuration;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{Board, Share};
use crate::works::{RunWork, Works};

mod debug;
mod fair;
mod limited;
mod model;
mod placed;
mod schemas;
mod stuck;

struct World {
    board: Board,
    works: Works,
    dice: Dice,
    now: Timestamp,
    seq: u64,
    polls: u64,
}

const SESSION: SessionId = SessionId(Uuid::from_u128(1));

fn node_id(index: u32) -> NodeId {
    NodeId::derive(ClusterId::DEFAULT, &format!("n{index}"))
}

fn record(index: u32, session: SessionId) -> NodeRecord {
    NodeRecord {
        id: node_id(index),
        cluster: ClusterId::DEFAULT,
        session,
        description: Description {
            hostname: format!("n{index}"),
            groups: Vec::new(),
            labels: BTreeMap::new(),
            capabilities: BTreeMap::new(),
            backends: Catalogue::builtin().backends().to_vec(),
            slots: 8,
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

impl World {
    fn new(nodes: u32) -> Self {
        let mut board = Board::default();
        for index in 0..nodes {
            board.add_node(record(index, SESSION));
        }
        let now = Timestamp::from_second(1_000).unwrap();
        Self { board, works: Works::default(), dice: Dice::new(1), now, seq: 0, polls: 0 }
    }

    /// Returns a world with one node, whose first poll gets the only execution of a run when that is committed.
    fn with_reserved() -> (Self, RunId, oneshot::Receiver<PollAnswer>, Vec<Execution>) {
        let mut world = Self::new(1);
        let run = world.run("r", noops(1, &json!({"target": "all"})));
        let poll = world.park(0, 1, WIDE);
        let mut executions = world.executions(&run, 1, Some(node_id(0)));
        world.reserve(&mut executions);
        (world, run, poll, executions)
    }

    fn run(&mut self, name: &str, definition: Value) -> RunId {
        let definition: Definition = serde_json::from_value(definition).unwrap();
        let nodes: Vec<Arc<NodeRecord>> = self.board.nodes().cloned().collect();
        let resolved = resolve(&definition, &definition.params, &nodes).unwrap();
        let plan = Plan::compile(Arc::new(definition), Arc::new(resolved)).unwrap();
        let work = RunWork::new(RunId::from(name), ClusterId::DEFAULT, Arc::new(plan));
        self.works.insert(Arc::new(work));
        RunId::from(name)
    }

    fn work(&self, run: &RunId) -> Arc<Work> {
        self.works.get(&Origin::Step { run: run.clone(), step: 0, item: None }).unwrap()
    }

    fn executions(&mut self, run: &RunId, count: u32, pinned: Option<NodeId>) -> Vec<Execution> {
        (0..count)
            .map(|step| Execution {
                id: ExecutionId(self.dice.uuid_at(self.now)),
                of: Origin::Step { run: run.clone(), step, item: None },
                pinned,
                attempt: 1,
                created_at: self.now,
                state: State::Pending { not_before: None },
                params: Default::default(),
                reused: None,
                limits: None,
                cache_key: None,
                former: None,
                failed_for_good: None,
                round: 1,
            })
            .collect()
    }

    fn park(&mut self, node: u32, poll: u64, free: Free) -> oneshot::Receiver<PollAnswer> {
        let (answer, answered) = oneshot::channel();
        self.board.park(node_id(node), SESSION, poll, free, answer).unwrap();
        answered
    }

    fn reserve(&mut self, executions: &mut [Execution]) {
        self.board.reserve(executions, &self.works, self.now, &mut self.dice);
    }

    fn commit(&mut self, changes: Vec<Change>) {
        let server = ServerId(Uuid::nil());
        let events: Vec<Event> = changes
            .into_iter()
            .map(|change| {
                self.seq += 1;
                Event { seq: self.seq, server, about: About::default(), change }
            })
            .collect();
        self.board.apply(&events, &self.works);
    }

    fn add(&mut self, run: &RunId, executions: Vec<Execution>) {
        let at = self.now;
        self.commit(vec![Change::ExecutionsAdded {
            run: run.clone(),
            epoch: 1,
            executions,
            rollout: None,
            version: None,
            sessions: Vec::new(),
            after: None,
            at,
        }]);
    }

    fn claim(&mut self) -> Vec<Change> {
        self.board.claim(self.now, &mut self.dice)
    }

    fn lose(&mut self, execution: &Execution) {
        let lease = *execution.state.lease().unwrap();
        let ends = vec![self.end_of(&Change::ExecutionLeased {
            of: execution.of.parent(),
            execution: execution.id,
            lease,
        })];
        self.commit(ends);
    }

    /// Ends executions that were claimed.
    fn end_of(&self, claim: &Change) -> Change {
        let Change::ExecutionLeased { of: Parent::Run(run), execution, lease } = claim else {
            panic!("no claim: {claim:?}")
        };
        Change::ExecutionLost {
            of: Parent::Run(run.clone()),
            execution: *execution,
            token: lease.token,
            silence: None,
            reason: "test".to_owned(),
            at: self.now,
        }
    }

    fn end(&mut self, claims: &[Change]) {
        let ends = claims.iter().map(|claim| self.end_of(claim)).collect();
        self.commit(ends);
    }

    /// Adds this many pending executions of a run's first step, with these limits.
    fn wait(&mut self, run: &RunId, count: usize, limits: Option<Value>) -> Vec<ExecutionId> {
        let limits = limits.map(|limits| Arc::new(serde_json::from_value(limits).unwrap()));
        let executions: Vec<Execution> = (0..count)
            .map(|_| {
                let mut execution = self.executions(run, 1, None).remove(0);
                execution.limits = limits.clone();
                execution
            })
            .collect();
        let ids = executions.iter().map(|execution| execution.id).collect();
        self.add(run, executions);
        ids
    }

    /// Claims this many executions for one node, one after the other: each ends before the next. Returns their runs.
    fn one_by_one(&mut self, slots: usize) -> Vec<String> {
        let mut runs = Vec::new();
        for _ in 0..slots {
            self.polls += 1;
            let _poll = self.park(0, self.polls, Free { fleet: 0, placed: 1, debug: None });
            let claims = self.claim();
            runs.extend(claimed_by_run(&claims).into_iter().map(|(run, _)| run));
            self.commit(claims.clone());
            self.end(&claims);
        }
        runs
    }
}

const WIDE: Free = Free { fleet: 1, placed: 8, debug: None };

fn leased(executions: &[Execution]) -> usize {
    executions.iter().filter(|execution| matches!(execution.state, State::Leased { .. })).count()
}

fn noops(count: usize, more: &Value) -> Value {
    let mut definition = json!({"tasks": vec![json!({"backend": "test", "action": "noop"}); count]});
    definition.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    definition
}

#[test]
fn max_per_node_counts_what_is_given_out_in_the_same_turn() {
    let mut world = World::new(2);
    let run = world.run("r", noops(5, &json!({"placement": {"max_per_node": 1}})));
    let _polls = [world.park(0, 1, WIDE), world.park(1, 1, WIDE)];
    let mut executions = world.executions(&run, 5, None);
    world.reserve(&mut executions);
    assert_eq!(leased(&executions), 2, "one for each node");
    world.add(&run, executions);
    assert_eq!(world.claim().len(), 0, "the limit holds for the queue, too");
}

#[test]
fn max_per_node_counts_fleet_work_that_is_given_out_in_between() {
    let mut world = World::new(1);
    let limited = json!({"backend": "test", "action": "noop", "placement": {"max_per_node": 2}});
    let pinned = json!({"backend": "test", "action": "noop", "target": "all"});
    let run = world.run("r", json!({"tasks": [limited, pinned, limited]}));
    let _poll = world.park(0, 1, WIDE);
    let mut executions = world.executions(&run, 3, None);
    executions[1].pinned = Some(node_id(0));
    world.reserve(&mut executions);
    let given: Vec<usize> = executions.chunks(1).map(leased).collect();
    assert_eq!(given, [1, 1, 0], "the node holds two of the run");
}

#[test]
fn placed_work_spreads_over_the_nodes() {
    let mut world = World::new(3);
    let run = world.run("r", noops(6, &json!({})));
    let _polls = [world.park(0, 1, WIDE), world.park(1, 1, WIDE), world.park(2, 1, WIDE)];
    let mut executions = world.executions(&run, 6, None);
    world.reserve(&mut executions);
    let mut per_node: BTreeMap<NodeId, usize> = BTreeMap::new();
    for execution in &executions {
        *per_node.entry(execution.state.lease().unwrap().node).or_default() += 1;
    }
    assert_eq!(per_node.into_values().collect::<Vec<_>>(), [2, 2, 2]);
}

#[test]
fn what_a_failed_commit_took_is_given_back() {
    let mut world = World::new(1);
    let run = world.run("r", noops(1, &json!({"placement": {"max_per_node": 1}})));
    let _poll = world.park(0, 1, Free { fleet: 1, placed: 1, debug: None });
    let mut executions = world.executions(&run, 1, None);
    world.reserve(&mut executions);
    assert_eq!(leased(&executions), 1);
    world.board.release(&mut executions);
    let mut again = world.executions(&run, 1, None);
    world.reserve(&mut again);
    assert_eq!(leased(&again), 1, "slot and limit are free again");
}

#[test]
fn claims_of_a_failed_commit_are_claimed_again() {
    let mut world = World::new(1);
    let run = world.run("r", noops(2, &json!({})));
    let executions = world.executions(&run, 2, None);
    world.add(&run, executions);
    let _poll = world.park(0, 1, WIDE);
    let claims = world.claim();
    assert_eq!(claims.len(), 2);
    assert!(world.claim().is_empty(), "not while they are being committed");
    world.board.claims_failed(claims);
    assert_eq!(world.claim().len(), 2);
}

#[test]
fn a_poll_ends_when_its_node_goes_offline_and_gets_no_work_when_the_node_is_back_elsewhere() {
    let mut world = World::new(1);
    let run = world.run("r", noops(2, &json!({})));
    let mut poll = world.park(0, 1, WIDE);
    for (from, to) in [(NodeStatus::Online, NodeStatus::Offline), (NodeStatus::Offline, NodeStatus::Online)] {
        let (node, at) = (node_id(0), world.now);
        world.commit(vec![Change::NodeMoved { node, session: SESSION, from, to, silent_since: None, at }]);
    }
    assert_eq!(poll.try_recv().unwrap(), PollAnswer::default());
    let executions = world.executions(&run, 2, None);
    world.add(&run, executions);
    assert!(world.claim().is_empty(), "nobody polls here");
    let _next = world.park(0, 2, WIDE);
    assert_eq!(world.claim().len(), 2);
}

#[test]
fn what_ended_before_it_was_handed_over_is_not_handed_over() {
    let (mut world, run, poll, executions) = World::with_reserved();
    drop(poll);
    world.board.unpark(node_id(0), 1);
    world.add(&run, executions.clone());
    world.lose(&executions[0]);
    let mut next = world.park(0, 2, WIDE);
    assert!(next.try_recv().is_err(), "the lost attempt must not begin now");
}

#[test]
fn a_lease_that_commits_while_its_poll_is_gone_waits_for_the_next_one() {
    let (mut world, run, poll, executions) = World::with_reserved();
    drop(poll);
    // The next poll resynchronizes: the store does not have the lease yet, the commit comes right after.
    world.board.unpark_any(node_id(0));
    world.board.resynced(node_id(0), &HashSet::default(), Vec::new());
    world.add(&run, executions.clone());
    let mut next = world.park(0, 2, WIDE);
    let answer = next.try_recv().expect("handed over at once");
    assert_eq!(answer.assignments[0].execution, executions[0].id);
}

#[test]
fn what_a_node_should_have_long_since_is_handed_over_again() {
    let (mut world, run, mut first, executions) = World::with_reserved();
    world.add(&run, executions.clone());
    let answer = first.try_recv().expect("handed over, and lost on the way");
    let held = LeaseRef { execution: executions[0].id, token: answer.assignments[0].token };
    let mut second = world.park(0, 2, WIDE);
    world.board.review(node_id(0), &[], world.now + SignedDuration::from_secs(10));
    assert!(second.try_recv().is_err(), "it may still be on its way");
    let later = world.now + SignedDuration::from_secs(100);
    world.board.review(node_id(0), &[held], later);
    assert!(second.try_recv().is_err(), "the node has it");
    world.board.review(node_id(0), &[], later);
    assert_eq!(second.try_recv().unwrap().assignments.len(), 1);
}

#[test]
fn the_result_of_a_former_session_is_lost_when_its_agent_has_not_listed_it_for_long() {
    let (mut world, run, mut poll, executions) = World::with_reserved();
    world.add(&run, executions.clone());
    let token = poll.try_recv().expect("handed over").assignments[0].token;
    let held = LeaseRef { execution: executions[0].id, token };
    let mut next = record(0, SessionId(Uuid::from_u128(2)));
    next.undelivered = vec![held.execution];
    world.board.add_node(next);
    let mut later = |seconds: i64, listed: &[LeaseRef]| {
        world.now += SignedDuration::from_secs(seconds);
        world.board.review(node_id(0), listed, world.now);
        let claims = world.board.claim(world.now, &mut world.dice);
        let lost = claims.into_iter().map(|claim| match claim {
            Change::ExecutionLost { execution, token, reason, .. } => (LeaseRef { execution, token }, reason),
            other => panic!("{other:?}"),
        });
        lost.collect::<Vec<_>>()
    };
    assert_eq!(later(1_000, &[held]), [], "its agent has it");
    assert_eq!(later(10, &[]), [], "its end may be on its way to this board");
    assert_eq!(later(80, &[held]), [], "its agent has it");
    assert_eq!(later(10, &[]), []);
    assert_eq!(later(90, &[]), []);
    assert_eq!(later(1, &[]), [(held, "the agent no longer has its result".to_owned())]);
    assert_eq!(later(10, &[]), [], "its end is being committed");
    assert_eq!(later(100, &[]).len(), 1, "that was not committed");
}

#[test]
fn an_answer_carries_no_more_than_fits_into_a_message() {
    let mut world = World::new(1);
    let big = "x".repeat(900_000);
    let task = json!({"backend": "test", "action": "echo", "params": {"message": big}});
    let run = world.run("r", json!({"tasks": vec![task; 10]}));
    let mut first = world.park(0, 1, Free { fleet: 1, placed: 20, debug: None });
    let mut executions = world.executions(&run, 10, None);
    world.reserve(&mut executions);
    assert_eq!(leased(&executions), 10);
    world.add(&run, executions);
    let mut handed_over = 0;
    let mut answer = first.try_recv().unwrap();
    for poll in 2..20 {
        let bytes: usize = answer.assignments.iter().map(|assignment| assignment.wire_bytes()).sum();
        assert!(bytes <= downbeat_core::limits::POLL_RESPONSE_BYTES, "{bytes}");
        handed_over += answer.assignments.len();
        if handed_over == 10 {
            return;
        }
        answer = world
            .park(0, poll, Free { fleet: 1, placed: 0, debug: None })
            .try_recv()
            .expect("the rest comes at once");
    }
    panic!("only {handed_over} of 10 were handed over");
}

#[test]
fn a_lease_to_a_session_that_ended_is_lost() {
    let (mut world, run, _poll, executions) = World::with_reserved();
    world.board.add_node(record(0, SessionId(Uuid::from_u128(2))));
    world.add(&run, executions);
    let claims = world.claim();
    assert!(matches!(claims[..], [Change::ExecutionLost { .. }]), "{claims:?}");
    world.board.claims_failed(claims);
    assert_eq!(world.claim().len(), 1, "until it is committed");
}

#[test]
fn a_lease_to_a_node_that_went_offline_meanwhile_is_lost() {
    let (mut world, run, _poll, executions) = World::with_reserved();
    let (from, to, at) = (NodeStatus::Online, NodeStatus::Offline, world.now);
    world.commit(vec![Change::NodeMoved {
        node: node_id(0),
        session: SESSION,
        from,
        to,
        silent_since: None,
        at,
    }]);
    world.add(&run, executions);
    assert!(matches!(world.claim()[..], [Change::ExecutionLost { .. }]));
}

#[test]
fn classes_live_as_long_as_something_is_of_them() {
    let mut world = World::new(0);
    for round in 0..3_000 {
        let run = world.run(&format!("r{round}"), noops(1, &json!({"placement": {"max_per_node": 1}})));
        let executions = world.executions(&run, 1, None);
        let id = executions[0].id;
        world.add(&run, executions);
        if round % 2 == 0 {
            let at = world.now;
            let (epoch, reason) = (1, String::new());
            world.commit(vec![Change::ExecutionCancelRequested { run, execution: id, epoch, reason, at }]);
        }
    }
    world.board.add_node(record(0, SESSION));
    let _poll = world.park(0, 1, Free { fleet: 1, placed: 10_000, debug: None });
    assert_eq!(world.claim().len(), 1_500, "one of each run that is left");
}

fn claimed(claims: &[Change]) -> Vec<ExecutionId> {
    let id = |claim: &Change| match claim {
        Change::ExecutionLeased { execution, .. } => *execution,
        other => panic!("no claim: {other:?}"),
    };
    claims.iter().map(id).collect()
}

#[test]
fn servers_that_share_work_claim_different_parts_of_it_first() {
    let mut claims = Vec::new();
    for index in 0..3 {
        // The same dice: every server sees the same work.
        let mut world = World::new(1);
        world.board.share(Share { index, servers: 3 });
        let run = world.run("r", noops(100, &json!({})));
        let executions = world.executions(&run, 100, None);
        world.add(&run, executions);
        let _poll = world.park(0, 1, Free { fleet: 1, placed: 10, debug: None });
        claims.extend(claimed(&world.claim()));
    }
    assert_eq!(claims.len(), 30);
    assert_eq!(claims.iter().collect::<HashSet<_>>().len(), 30);
}

#[test]
fn what_other_servers_leave_is_claimed_as_well() {
    let mut world = World::new(1);
    world.board.share(Share { index: 1, servers: 3 });
    let run = world.run("r", noops(20, &json!({})));
    let executions = world.executions(&run, 20, None);
    world.add(&run, executions);
    let _poll = world.park(0, 1, Free { fleet: 1, placed: 20, debug: None });
    let own = world.claim().len();
    assert!(own > 0 && own < 20, "{own}");
    let left_at = world.board.next_due().expect("it is looked at again");
    assert!(left_at > world.now);
    world.now = left_at;
    assert_eq!(own + world.claim().len(), 20);
    assert_eq!(world.board.next_due(), None);
}

#[test]
fn a_few_are_taken_by_servers_with_room() {
    let mut world = World::new(1);
    world.board.share(Share { index: 1, servers: 3 });
    let run = world.run("r", noops(3, &json!({})));
    let executions = world.executions(&run, 3, None);
    world.add(&run, executions);
    let _poll = world.park(0, 1, Free { fleet: 1, placed: 20, debug: None });
    assert_eq!(world.claim().len(), 3);
}

#[test]
fn a_claim_that_another_server_won_gives_its_slot_back() {
    let mut world = World::new(2);
    let run = world.run("r", noops(2, &json!({})));
    let executions = world.executions(&run, 2, None);
    let first = executions[0].id;
    world.add(&run, executions[..1].to_vec());
    let _poll = world.park(0, 1, Free { fleet: 1, placed: 1, debug: None });
    let claims = world.claim();
    assert_eq!(claimed(&claims), [first]);
    // The feed reports that a node of another server has it, before the refusal arrives.
    let lease = Lease {
        token: LeaseToken(Uuid::from_u128(7)),
        node: node_id(1),
        session: SESSION,
        granted_at: world.now,
    };
    world.commit(vec![Change::ExecutionLeased { of: Parent::Run(run.clone()), execution: first, lease }]);
    world.board.unclaim(&claims[0]);
    assert!(world.board.holds(node_id(1), &LeaseRef { execution: first, token: lease.token }));
    world.add(&run, executions[1..].to_vec());
    assert_eq!(claimed(&world.claim()), [executions[1].id]);
}

#[test]
fn what_waits_too_long_is_taken_first_whosever_share_it_is() {
    let mut world = World::new(1);
    world.board.share(Share { index: 0, servers: 3 });
    let run = world.run("r", noops(100, &json!({})));
    let old = world.executions(&run, 50, None);
    world.add(&run, old.clone());
    world.now += SignedDuration::from_secs(5);
    let new = world.executions(&run, 50, None);
    world.add(&run, new);
    let _poll = world.park(0, 1, Free { fleet: 1, placed: 50, debug: None });
    let mut claimed = claimed(&world.claim());
    claimed.sort_unstable();
    assert_eq!(claimed, old.iter().map(|execution| execution.id).collect::<Vec<_>>());
}

#[test]
fn waiting_work_is_divided_again_when_servers_come_and_go() {
    let mut world = World::new(1);
    let run = world.run("r", noops(30, &json!({})));
    let executions = world.executions(&run, 30, None);
    world.add(&run, executions);
    world.board.share(Share { index: 0, servers: 3 });
    let _poll = world.park(0, 1, Free { fleet: 1, placed: 30, debug: None });
    let own = world.claim().len();
    assert!(own < 30, "{own}");
    world.board.share(Share { index: 0, servers: 1 });
    assert_eq!(own + world.claim().len(), 30);
}

fn task() -> Value {
    json!({"backend": "test", "action": "noop"})
}

fn claimed_by_run(changes: &[Change]) -> Vec<(String, NodeId)> {
    let claim = |change: &Change| match change {
        Change::ExecutionLeased { of: Parent::Run(run), lease, .. } => Some((run.to_string(), lease.node)),
        _ => None,
    };
    changes.iter().filter_map(claim).collect()
}

#[test]
fn a_held_node_gets_work_of_its_holder_only() {
    let mut world = World::new(2);
    let holder = world.run("holder", json!({"target": "all", "exclusive": true, "tasks": [task()]}));
    let other = world.run("other", json!({"target": "all", "tasks": [task()]}));
    let placed = world.run("placed", json!({"tasks": [task()]}));
    let at = world.now;
    let admitted =
        Change::RunAdmitted { run: holder.clone(), epoch: 1, limit: None, nodes: vec![node_id(0)], at };
    world.commit(vec![admitted]);
    let _parked = [world.park(0, 1, WIDE), world.park(1, 1, WIDE)];
    // Neither leased at creation nor claimed; older pending work does not block the holder.
    let mut born = world.executions(&other, 1, Some(node_id(0)));
    world.reserve(&mut born);
    assert_eq!(leased(&born), 0);
    let (hostname, facts) = world.board.wait_facts(&born[0], world.now).unwrap();
    assert_eq!(hostname, "n0");
    assert_eq!(facts.kept.as_deref(), Some("the node is held by run holder (exclusive)"));
    world.add(&other, born);
    let own = world.executions(&holder, 1, Some(node_id(0)));
    world.add(&holder, own);
    let anywhere = world.executions(&placed, 1, None);
    world.add(&placed, anywhere);
    let changes = world.claim();
    let mut claims = claimed_by_run(&changes);
    claims.sort();
    assert_eq!(claims, [("holder".to_owned(), node_id(0)), ("placed".to_owned(), node_id(1))]);
    world.commit(changes);
    // Its end frees the node.
    let path = vec![downbeat_core::run::RunState::Cancelled];
    world.commit(vec![Change::RunMoved {
        room: None,
        run: holder,
        epoch: 1,
        path,
        stop: None,
        end: None,
        at,
    }]);
    let _again = world.park(0, 2, WIDE);
    assert_eq!(claimed_by_run(&world.claim()), [("other".to_owned(), node_id(0))]);
}

#[test]
fn a_run_that_is_pending_again_frees_its_nodes_and_stays_paused() {
    use downbeat_core::run::RunState::{Pending, Retrying, Terminating};
    let mut world = World::new(1);
    let run = world.run("holder", json!({"target": "all", "exclusive": true, "tasks": [task()]}));
    let at = world.now;
    let nodes = vec![node_id(0)];
    world.commit(vec![
        Change::RunAdmitted { run: run.clone(), epoch: 1, limit: None, nodes, at },
        Change::RunPauseSet { run: run.clone(), paused: true, by: "ada".to_owned(), at },
        Change::RunMoved {
            room: None,
            run: run.clone(),
            epoch: 1,
            path: vec![Terminating, Retrying],
            stop: None,
            end: None,
            at,
        },
    ]);
    assert_eq!(world.board.holder(node_id(0)), Some(&run));
    let path = vec![Pending];
    world.commit(vec![Change::RunMoved {
        room: None,
        run: run.clone(),
        epoch: 1,
        path,
        stop: None,
        end: None,
        at,
    }]);
    assert_eq!(world.board.holder(node_id(0)), None);
    assert!(world.board.is_paused(&Origin::Step { run, step: 0, item: None }));
}

#[test]
fn a_node_that_is_kept_free_gets_nothing_of_others() {
    let mut world = World::new(1);
    let other = world.run("other", json!({"target": "all", "tasks": [task()]}));
    let _parked = world.park(0, 1, WIDE);
    let wanted = [(node_id(0), RunId::from("next"))].into_iter().collect();
    assert!(world.board.keep_free(wanted));
    let waiting = world.executions(&other, 1, Some(node_id(0)));
    world.add(&other, waiting);
    assert_eq!(claimed_by_run(&world.claim()), []);
    assert!(world.board.keep_free(Default::default()) && !world.board.keep_free(Default::default()));
    assert_eq!(claimed_by_run(&world.claim()), [("other".to_owned(), node_id(0))]);
}

#[test]
fn what_waits_of_a_paused_run_is_not_given_out_until_it_goes_on() {
    let mut world = World::new(1);
    let run = world.run("paused", json!({"tasks": [task(), task(), task()]}));
    let paused =
        |paused, at| Change::RunPauseSet { run: RunId::from("paused"), paused, by: String::new(), at };
    let mut executions = world.executions(&run, 3, None);
    let (late, at) = (executions.split_off(1), world.now);
    world.add(&run, executions);
    world.commit(vec![paused(true, at)]);
    // Also work that is added while it is paused, now or after a delay.
    let mut late = late;
    world.reserve(&mut late);
    assert_eq!(leased(&late), 0);
    late[1].state = State::Pending { not_before: Some(at) };
    let cancelled = late[0].id;
    world.add(&run, late);
    let _parked = world.park(0, 1, WIDE);
    assert_eq!((claimed_by_run(&world.claim()), world.board.waiting()), (Vec::new(), 0));
    let cancel = Change::ExecutionCancelRequested {
        run: run.clone(),
        execution: cancelled,
        epoch: 1,
        reason: String::new(),
        at,
    };
    world.commit(vec![cancel, paused(false, at)]);
    assert_eq!(claimed_by_run(&world.claim()).len(), 2);
}
