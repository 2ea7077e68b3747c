//! Owns the setup of a check: the run, the number of faults, the level of detail, and the deliberate defect.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use downbeat_core::backend::Catalogue;
use downbeat_core::ids::{ClusterId, RunId, ServerId};
use downbeat_core::node::{Description, Former, NodeRecord, NodeStatus, Registration};
use downbeat_core::plan::{Plan, resolve};
use downbeat_core::run::{RunMade, RunRecord};
use downbeat_core::spec::Definition;
use downbeat_core::state::Tables;
use downbeat_core::{Change, Timestamp};
use serde_json::{Value, json};
use uuid::Uuid;

use super::world::{Breaches, NODES, SERVERS, Server, World, node_id, session_id};

/// A missing guard. The tables and the engine are always the real ones: the defect is in how the model passes changes
/// to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    Nothing,
    /// A report is applied regardless of its lease.
    NoFencing,
    /// A change to a run is applied regardless of its owner.
    NoEpochGuard,
    /// A leased execution may be leased again.
    NoPendingGuard,
    /// An agent forgets its results when it crashes.
    NoOutbox,
    /// A server acknowledges a result before it is committed.
    EarlyReceipt,
    /// A new owner starts at step 0.
    FromTheStart,
    /// An owner acts on results that are not committed.
    ActsOnRumours,
    /// Nobody takes over the runs of a crashed server.
    NoTakeOver,
    /// The feed omits lost attempts.
    ForgetfulFeed,
}

/// The level of detail of the environment. An event that is off happens together with the one before it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Detail {
    /// Agents report the start of work separately.
    pub(crate) starts: bool,
    /// Agents receive the response to a report separately from its commit.
    pub(crate) receipts: bool,
    /// Executions may be added with a lease.
    pub(crate) born_leased: bool,
    /// Work may finish under a lease that is known to be lost: its result is late from the start.
    pub(crate) late_work: bool,
    /// Nodes may be silent for so long that they count as offline.
    pub(crate) silence: bool,
    /// A user may cancel the run.
    pub(crate) cancel: bool,
}

impl Detail {
    /// Everything except silence, which has so many worlds that it is checked alone.
    pub(crate) fn fine() -> Self {
        Self {
            starts: true,
            receipts: true,
            born_leased: true,
            late_work: true,
            silence: false,
            cancel: true,
        }
    }
}

/// Refusals are not part of a world, so their occurrence is recorded here.
#[derive(Debug, Default)]
pub(crate) struct Sightings(AtomicU32);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Sighting {
    LateReportRefused = 1,
    RepeatedReportAbsorbed = 2,
    OldOwnerRefused = 4,
    SecondClaimRefused = 8,
    CommitTriedAgain = 16,
}

impl Sightings {
    pub(crate) fn note(&self, sighting: Sighting) {
        self.0.fetch_or(sighting as u32, Ordering::Relaxed);
    }

    pub(crate) fn has(&self, sighting: Sighting) -> bool {
        self.0.load(Ordering::Relaxed) & sighting as u32 != 0
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) plan: Arc<Plan>,
    /// The run as it is created.
    pub(crate) record: RunRecord,
    pub(crate) detail: Detail,
    pub(crate) faults: u8,
    pub(crate) broken: Broken,
    pub(crate) seen: Arc<Sightings>,
}

pub(crate) fn run_id() -> RunId {
    static RUN: LazyLock<RunId> = LazyLock::new(|| RunId::from("run"));
    RUN.clone()
}

pub(crate) fn server_id(server: usize) -> ServerId {
    ServerId(Uuid::from_u128(0x200 + server as u128))
}

/// Uses the owner's epoch as the time of its decisions, so that an execution shows its creator.
pub(crate) fn time(epoch: u64) -> Timestamp {
    Timestamp::from_second(i64::try_from(epoch).expect("epochs are small")).expect("times are small")
}

/// Two entries on both nodes: the second starts when the first has ended everywhere.
pub(crate) fn list() -> Value {
    json!({"target": "all", "tasks": [
        {"name": "first", "backend": "test", "action": "noop"},
        {"name": "second", "backend": "test", "action": "noop"},
    ]})
}

/// One entry on both nodes.
pub(crate) fn fleet() -> Value {
    json!({"target": "all", "tasks": [{"name": "only", "backend": "test", "action": "noop"}]})
}

/// A placed task, and one on both nodes that depends on it.
pub(crate) fn graph() -> Value {
    json!({"tasks": [
        {"name": "build", "backend": "test", "action": "noop", "retry": {"max": 1}},
        {"name": "install", "backend": "test", "action": "noop", "target": "all", "depends_on": ["build"]},
    ]})
}

/// One placed task, which may fail once.
pub(crate) fn placed() -> Value {
    json!({"tasks": [{"name": "only", "backend": "test", "action": "noop", "retry": {"max": 1}}]})
}

fn description(node: usize) -> Description {
    Description {
        hostname: format!("n{node}"),
        groups: Vec::new(),
        labels: BTreeMap::new(),
        capabilities: BTreeMap::new(),
        backends: Catalogue::builtin().backends().to_vec(),
        slots: 4,
        version: String::new(),
    }
}

fn node(node: usize) -> NodeRecord {
    NodeRecord {
        id: node_id(node),
        cluster: ClusterId::DEFAULT,
        session: session_id(1),
        description: description(node),
        status: NodeStatus::Online,
        draining: false,
        registered_at: time(1),
        seen_at: time(1),
        installation: None,
        undelivered: Vec::new(),
        kept_since: None,
        displaced: None,
        problems: Vec::new(),
    }
}

/// The tables' part of a registration does not depend on its description.
pub(crate) fn registered(node: usize, session: u8) -> Change {
    let description = Description { backends: Vec::new(), ..description(node) };
    let registration = Registration {
        node: node_id(node),
        cluster: ClusterId::DEFAULT,
        session: session_id(session),
        description,
        installation: None,
        undelivered: Vec::new(),
        kept_since: None,
        attempts: Vec::new(),
        former: Former::Any,
        at: time(1),
    };
    Change::NodeRegistered { registration }
}

impl Protocol {
    pub(crate) fn new(definition: Value, detail: Detail, faults: u8) -> Self {
        let definition: Definition = serde_json::from_value(definition).expect("the definition is valid");
        let nodes: Vec<_> = (0..NODES).map(|index| Arc::new(node(index))).collect();
        let resolved = resolve(&definition, &definition.params, &nodes).expect("its targets exist");
        let (definition, resolved) = (Arc::new(definition), Arc::new(resolved));
        let plan = Plan::compile(Arc::clone(&definition), Arc::clone(&resolved)).expect("it has a plan");
        let made = RunMade {
            id: run_id(),
            cluster: ClusterId::DEFAULT,
            job: None,
            definition,
            resolved,
            by: "model".to_owned(),
            idempotency_key: None,
            request_hash: None,
            created_at: time(1),
            params: Default::default(),
            retry_of: None,
            no_cache: false,
            job_version: None,
        };
        let record = RunRecord::new(made, server_id(0));
        let (broken, seen) = (Broken::Nothing, Arc::default());
        Self { plan: Arc::new(plan), record, detail, faults, broken, seen }
    }

    /// Allows `DOWNBEAT_TEST_MODEL_FAULTS` more faults than usual, for longer checks.
    pub(crate) fn and_more(self) -> Self {
        let more: u8 = match std::env::var("DOWNBEAT_TEST_MODEL_FAULTS") {
            Ok(text) => text.parse().expect("DOWNBEAT_TEST_MODEL_FAULTS is a number"),
            Err(_) => 0,
        };
        Self { faults: self.faults + more, ..self }
    }

    pub(crate) fn broken(self, broken: Broken) -> Self {
        Self { broken, ..self }
    }

    /// Both nodes are registered, and the first server has just received the run.
    pub(crate) fn beginning(&self) -> World {
        let mut world = World {
            tables: Arc::new(Tables::new()),
            last_seq: 0,
            servers: [const { Server::Idle }; SERVERS],
            agents: [1; NODES],
            grants: Vec::new(),
            faults: self.faults,
            breaches: Breaches::default(),
        };
        let nodes = (0..NODES).map(|node| registered(node, 1)).collect();
        self.commit(&mut world, nodes);
        self.submit(&mut world);
        world
    }
}
