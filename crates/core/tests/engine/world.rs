//! A world for one run: commits the changes of the engine, and lets the test act as the nodes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use downbeat_core::backend::{Catalogue, Params};
use downbeat_core::execution::{self, Execution, Lease, Outcome, Status, Verdict};
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, NodeId, RunId, ServerId, SessionId};
use downbeat_core::node::{Description, NodeRecord, NodeStatus, Reach};
use downbeat_core::plan::{Plan, Resolved, StepIx, resolve};
use downbeat_core::run::engine::{self, Progress, Stop, Turn};
use downbeat_core::run::{self, Instance, RunEnd, RunEvent, RunMade, RunRecord, RunState, requested_stop};
use downbeat_core::spec::Definition;
use downbeat_core::work::Parent;
use downbeat_core::{Change, Dice, Portion, Timestamp, level};
use jiff::SignedDuration;
use serde_json::Value;
use uuid::Uuid;

pub(crate) struct World {
    pub(crate) plan: Arc<Plan>,
    pub(crate) progress: Progress,
    /// Those of the last round.
    pub(crate) executions: BTreeMap<ExecutionId, Execution>,
    /// Those of earlier rounds.
    former_rounds: Vec<Execution>,
    pub(crate) record: RunRecord,
    pub(crate) dice: Dice,
    pub(crate) now: Timestamp,
    pub(crate) offline: HashSet<NodeId>,
    pub(crate) deleted: HashSet<NodeId>,
    /// The run's timeout is over: the next server notices it even if nothing was recorded.
    has_timed_out: bool,
    /// The number of executions in the largest single change.
    pub(crate) largest_addition: usize,
    /// The number of executions that the largest submission added or changed.
    pub(crate) largest_submission: usize,
    /// The executions created to run, in order: step@node.
    pub(crate) sent: Vec<String>,
    /// After this many more submissions the server dies before the next one, and another takes over.
    pub(crate) dies_after: Option<u32>,
    portion: Portion,
    /// Steps that no node fits.
    pub(crate) unfit: HashSet<u32>,
    /// The results in the cache, by key.
    pub(crate) cache: BTreeMap<String, Execution>,
    /// Whether results of this run are added to the cache.
    pub(crate) keeps_results: bool,
    /// The executions that were waiting when a server took over.
    pub(crate) remembered: Vec<ExecutionId>,
    /// The description of an exceeded bound on open executions, if there ever was one.
    pub(crate) broken: Option<String>,
    /// A node leases this execution just before the engine's next changes are committed.
    pub(crate) race: Option<ExecutionId>,
    /// The common level of all servers.
    pub(crate) level: u32,
    /// Since when agents have been able to report.
    pub(crate) serving_since: Timestamp,
    /// The instances that the engine recorded as failed for good, in order: step@node: reason.
    pub(crate) failed_for_good: Vec<String>,
    /// New executions and final failures in the order of commits: `added step@node` and `failed step@node`.
    pub(crate) feed: Vec<String>,
    /// The recorded progress of a roll-out: wave, and failures that count.
    pub(crate) rollouts: Vec<(u32, u32)>,
}

pub(crate) fn nodes(count: usize) -> Vec<Arc<NodeRecord>> {
    (0..count)
        .map(|index| {
            let hostname = format!("n{index}");
            Arc::new(NodeRecord {
                id: NodeId::derive(ClusterId::DEFAULT, &hostname),
                cluster: ClusterId::DEFAULT,
                session: SessionId(Uuid::from_u128(1)),
                description: Description {
                    hostname,
                    groups: vec!["web".to_owned()],
                    labels: BTreeMap::new(),
                    capabilities: BTreeMap::new(),
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
            })
        })
        .collect()
}

/// Returns how many executions a change of the engine adds or changes.
fn rows(change: &Change) -> usize {
    match change {
        Change::ExecutionsAdded { executions, .. } => executions.len(),
        Change::RunMoved { .. } => 0,
        _ => 1,
    }
}

impl World {
    pub(crate) fn new(definition: Value, node_count: usize, seed: u64) -> Self {
        let definition: Definition = serde_json::from_value(definition).unwrap();
        let resolved = resolve(&definition, &definition.params, &nodes(node_count)).unwrap();
        Self::of(Arc::new(definition), Arc::new(resolved), seed)
    }

    /// Creates a run that has not begun, for resolved nodes.
    pub(crate) fn of(definition: Arc<Definition>, resolved: Arc<Resolved>, seed: u64) -> Self {
        let plan = Arc::new(Plan::compile(Arc::clone(&definition), Arc::clone(&resolved)).unwrap());
        let id = RunId::from("run");
        let now = Timestamp::from_second(1_000_000).unwrap();
        let made = RunMade {
            id: id.clone(),
            cluster: ClusterId::DEFAULT,
            job: None,
            definition,
            resolved,
            params: Default::default(),
            retry_of: None,
            no_cache: false,
            job_version: None,
            by: "test".to_owned(),
            idempotency_key: None,
            request_hash: None,
            created_at: now,
        };
        let record = RunRecord::new(made, ServerId(Uuid::nil()));
        let progress = Progress::new(Arc::clone(&plan), id, 1, RunState::Pending);
        Self {
            plan,
            progress,
            executions: BTreeMap::new(),
            former_rounds: Vec::new(),
            record,
            dice: Dice::new(seed),
            now,
            offline: HashSet::new(),
            deleted: HashSet::new(),
            has_timed_out: false,
            largest_addition: 0,
            largest_submission: 0,
            sent: Vec::new(),
            dies_after: None,
            unfit: HashSet::new(),
            cache: BTreeMap::new(),
            keeps_results: false,
            remembered: Vec::new(),
            broken: None,
            race: None,
            level: level::LEVEL,
            serving_since: Timestamp::UNIX_EPOCH,
            portion: engine::COMMIT,
            failed_for_good: Vec::new(),
            feed: Vec::new(),
            rollouts: Vec::new(),
        }
    }

    /// Adds the executions that a retry takes over.
    pub(crate) fn carry_over(&mut self, executions: Vec<Execution>) {
        self.executions = executions.into_iter().map(|execution| (execution.id, execution)).collect();
        self.progress = self.restored();
    }

    /// Makes each submission this small.
    pub(crate) fn set_portion(&mut self, portion: Portion) {
        self.portion = portion;
        self.progress = self.progress.clone().with_portion(portion);
    }

    pub(crate) fn turn(&mut self, act: impl FnOnce(&mut Progress, &mut Turn<'_>)) {
        self.decide(act);
        self.commit();
    }

    fn decide(&mut self, act: impl FnOnce(&mut Progress, &mut Turn<'_>)) {
        let unfit = self.unfit.clone();
        let fits =
            move |step: StepIx| if unfit.contains(&step.0) { Err("no node fits".to_owned()) } else { Ok(()) };
        let reach = |node: NodeId| match () {
            () if self.deleted.contains(&node) => Reach::Deleted,
            () if self.offline.contains(&node) => Reach::Offline,
            () => Reach::Here,
        };
        let mut turn = Turn {
            now: self.now,
            dice: &mut self.dice,
            reach: &reach,
            facts: &|_| None,
            fits: &fits,
            level: self.level,
            serving_since: self.serving_since,
        };
        act(&mut self.progress, &mut turn);
    }

    pub(crate) fn begin(&mut self) {
        self.turn(|progress, turn| progress.begin(turn));
    }

    /// Restarts from the records alone, as a new server does after the old one died.
    pub(crate) fn restart(&mut self) {
        self.record.live.epoch += 1;
        self.remembered.extend(self.open(Status::Pending).iter().map(|execution| execution.id));
        self.progress = self.restored();
        self.turn(|progress, turn| progress.go_on(turn));
    }

    /// Begins the next round of a run that is retrying. The server may die between any two submissions.
    pub(crate) fn begin_round(&mut self) {
        self.has_timed_out = false;
        self.former_rounds.extend(std::mem::take(&mut self.executions).into_values());
        while self.record.state() == RunState::Retrying {
            self.turn(|progress, _| progress.begin_round());
        }
        if self.record.state() == RunState::Pending {
            self.turn(|progress, turn| progress.go_on(turn));
        }
    }

    /// Returns the executions of all rounds.
    pub(crate) fn all_rounds(&self) -> Vec<Execution> {
        self.former_rounds.iter().chain(self.executions.values()).cloned().collect()
    }

    /// The run's timeout is over.
    pub(crate) fn time_out(&mut self) {
        self.has_timed_out = true;
        self.turn(|progress, turn| progress.time_out(turn));
    }

    fn restored(&mut self) -> Progress {
        let executions = self.all_rounds();
        let (plan, record, has_timed_out) = (Arc::clone(&self.plan), self.record.clone(), self.has_timed_out);
        let mut stop = None;
        self.decide(|_, turn| {
            let timed_out = has_timed_out.then(|| Stop::after_timeout(&plan, turn));
            stop = match record.live.cancel_requested_at.map(|_| Stop::Cancelled) {
                // A round that timed out has ended.
                cancelled if record.state() == RunState::Retrying => cancelled,
                _ => requested_stop(&record, &plan, turn).or(timed_out),
            };
        });
        let epoch = record.live.epoch;
        Progress::restore(plan, &record, epoch, &executions, stop).with_portion(self.portion)
    }

    /// Commits until there are no more changes.
    fn commit(&mut self) {
        let mut committed: Vec<Change> = Vec::new();
        loop {
            let mut changes = self.progress.take_changes(self.now);
            if changes.is_empty() {
                if self.progress.has_more() {
                    self.decide(|progress, turn| progress.finish_turn(turn));
                } else if committed.is_empty() {
                    return;
                } else {
                    let committed = std::mem::take(&mut committed);
                    self.observe(&committed.iter().collect::<Vec<_>>());
                }
                continue;
            }
            self.answer_from_cache(&mut changes);
            self.largest_submission = self.largest_submission.max(changes.iter().map(rows).sum());
            match &mut self.dies_after {
                Some(0) => {
                    self.dies_after = None;
                    return self.restart();
                }
                Some(left) => *left -= 1,
                None => {}
            }
            if let Some(id) = self.race.take() {
                let execution = self.executions[&id].clone();
                let leased = self.leased(&execution);
                assert!(self.apply(&leased), "only what waits can be leased");
                changes.insert(0, leased);
                let applied =
                    changes.into_iter().enumerate().filter(|(at, change)| *at == 0 || self.apply(change));
                committed.extend(applied.map(|(_, change)| change));
                continue;
            }
            changes.retain(|change| self.apply(change));
            self.watch();
            committed.extend(changes);
        }
    }

    /// Checks that no bound on open executions is exceeded.
    fn watch(&mut self) {
        let open = || self.executions.values().filter(|execution| execution.state.status().is_open());
        if let Some(most) = self.plan.definition.max_parallel
            && open().count() > most as usize
        {
            self.broken = Some(format!("{} executions are open, and {most} may be", open().count()));
        }
        for (index, entry) in self.plan.entries.iter().enumerate() {
            let Some(most) = entry.each.as_ref().and_then(|each| each.max_parallel) else { continue };
            let of_entry = |e: &&Execution| self.plan.steps[StepIx(e.step())].entry.get() == index;
            let items: HashSet<Option<u32>> = open().filter(of_entry).map(|e| e.item()).collect();
            if items.len() > most as usize {
                self.broken =
                    Some(format!("{} items of entry {index} are open, and {most} may be", items.len()));
            }
        }
    }

    /// Uses cached results, as a server does before it commits.
    fn answer_from_cache(&self, changes: &mut [Change]) {
        for change in changes {
            let Change::ExecutionsAdded { executions, .. } = change else { continue };
            for execution in executions {
                // Only before the first attempt, and only for pending executions.
                let first = execution.attempt == 1 && execution.state.status() == Status::Pending;
                let key = execution.cache_key.as_deref().filter(|_| first);
                if let Some(former) = key.and_then(|key| self.cache.get(key)) {
                    execution.state = former.state.clone();
                    execution.reused = Some(former.id);
                }
            }
        }
    }

    fn observe(&mut self, changes: &[&Change]) {
        let changes: Vec<Change> = changes.iter().filter_map(|change| Progress::observable(change)).collect();
        self.decide(|progress, turn| progress.observe_all(&changes, turn));
    }

    /// Commits a fact that the engine does not observe yet.
    pub(crate) fn apply(&mut self, change: &Change) -> bool {
        let mut step = |id: &ExecutionId, event: execution::Event| {
            let execution = self.executions.get_mut(id).expect("the execution exists");
            match execution::step(&execution.state, &event) {
                Ok(next) => {
                    execution.state = next;
                    true
                }
                Err(_) => false,
            }
        };
        if let Some((_, event)) = RunEvent::of(change) {
            let next = run::step(&self.record.live, &event);
            assert!(next.is_ok() || !matches!(event, RunEvent::Moved { .. }), "only allowed transitions");
            return next.map(|next| self.record.live = next).is_ok();
        }
        if let Change::ExecutionsAdded { rollout: Some(progress), version: None, .. }
        | Change::InstanceFailed { rollout: Some(progress), .. } = change
        {
            self.record.live.rollout = Some(*progress);
            self.rollouts.push((progress.wave, progress.failed));
        }
        match change.clone() {
            Change::ExecutionsAdded { executions, .. } => {
                self.largest_addition = self.largest_addition.max(executions.len());
                for execution in executions {
                    self.feed.push(format!("added {}@{}", execution.step(), self.place(&execution)));
                    if execution.state.status() == Status::Pending {
                        self.sent.push(format!("{}@{}", execution.step(), self.place(&execution)));
                    }
                    let old = self.executions.insert(execution.id, execution);
                    assert!(old.is_none(), "an id was used twice");
                }
                true
            }
            Change::ApprovalDecided { execution, decision, at, .. } => {
                step(&execution, execution::Event::Decided { decision, at })
            }
            Change::ExecutionCancelRequested { execution, reason, at, .. } => {
                step(&execution, execution::Event::CancelRequested { reason, at })
            }
            Change::ExecutionGivenUp { execution, error, at, .. } => {
                step(&execution, execution::Event::GivenUp { error, at })
            }
            Change::ExecutionSkipped { execution, reason, at, .. } => {
                step(&execution, execution::Event::Skipped { reason, at })
            }
            Change::ExecutionLeased { execution, lease, .. } => {
                step(&execution, execution::Event::Leased { lease })
            }
            Change::ExecutionStarted { execution, token, at, .. } => {
                step(&execution, execution::Event::Started { token, at, received_at: None })
            }
            Change::ExecutionFinished { execution, token, outcome, .. } => {
                let finished = step(&execution, execution::Event::Finished { token, outcome });
                self.keep_result(execution);
                finished
            }
            Change::ExecutionLost { execution, token, reason, at, .. } => {
                step(&execution, execution::Event::LeaseEnded { token, reason, at })
            }
            Change::InstanceFailed { execution: id, reason, .. } => {
                let last = &self.executions[&id];
                let instance = Instance::of(last);
                let attempts = self.executions.values().filter(|other| Instance::of(other) == instance);
                let counted = attempts.filter(|other| !other.is_withdrawn());
                let newest = counted.max_by_key(|other| other.attempt).map(|other| other.id);
                assert_eq!(newest, Some(id), "the last attempt that counts is marked");
                assert!(!last.state.status().is_open() && last.state.status() != Status::Succeeded);
                assert!(last.failed_for_good.is_none(), "a failure is recorded once");
                self.feed.push(format!("failed {}@{}", last.step(), self.place(last)));
                self.failed_for_good.push(format!("{}@{}: {reason}", last.step(), self.place(last)));
                let last = self.executions.get_mut(&id).expect("the execution exists");
                last.failed_for_good = Some(reason.into());
                true
            }
            other => panic!("the engine does not make {other:?}"),
        }
    }

    fn keep_result(&mut self, execution: ExecutionId) {
        let execution = &self.executions[&execution];
        if let Some(key) = execution.cache_key.as_deref().filter(|_| self.keeps_results)
            && execution.state.status() == Status::Succeeded
        {
            self.cache.insert(key.to_owned(), execution.clone());
        }
    }

    /// Commits and observes a fact from outside the engine.
    pub(crate) fn happens(&mut self, change: &Change) -> bool {
        let applied = self.apply(change);
        if applied {
            self.observe(&[change]);
            self.commit();
        }
        applied
    }

    /// Observes changes that were committed before.
    pub(crate) fn observe_all(&mut self, changes: &[Change]) {
        self.observe(&changes.iter().collect::<Vec<_>>());
        self.commit();
    }

    /// Returns the node, `[item]`, or `-` for a placed execution.
    pub(crate) fn place(&self, execution: &Execution) -> String {
        if let Some(item) = execution.item() {
            return format!("[{item}]");
        }
        let node = execution.pinned.and_then(|id| self.plan.resolved.nodes.iter().find(|node| node.id == id));
        node.map_or_else(|| "-".to_owned(), |node| node.hostname.clone())
    }

    pub(crate) fn open(&self, status: Status) -> Vec<Execution> {
        self.executions.values().filter(|execution| execution.state.status() == status).cloned().collect()
    }

    pub(crate) fn lease(&mut self, execution: &Execution) -> bool {
        let leased = self.leased(execution);
        self.happens(&leased)
    }

    pub(crate) fn end(&mut self, execution: &Execution, verdict: Verdict) -> bool {
        let finished = self.finished(execution.id, verdict);
        self.happens(&finished)
    }

    pub(crate) fn lose(&mut self, execution: &Execution) -> bool {
        let lost = self.lost(execution.id);
        self.happens(&lost)
    }

    pub(crate) fn leased(&mut self, execution: &Execution) -> Change {
        let token = LeaseToken(self.dice.uuid());
        let node = execution.pinned.unwrap_or(NodeId(Uuid::from_u128(7)));
        let lease = Lease { token, node, session: SessionId(Uuid::from_u128(1)), granted_at: self.now };
        Change::ExecutionLeased { of: execution.of.parent(), execution: execution.id, lease }
    }

    pub(crate) fn started(&self, execution: ExecutionId) -> Change {
        let token = self.token(execution);
        Change::ExecutionStarted {
            of: Parent::Run(self.record.id.clone()),
            execution,
            token,
            at: self.now,
            received_at: None,
        }
    }

    pub(crate) fn finished(&self, execution: ExecutionId, verdict: Verdict) -> Change {
        self.finished_with(execution, verdict, Params::default())
    }

    pub(crate) fn finished_with(&self, execution: ExecutionId, verdict: Verdict, outputs: Params) -> Change {
        let outcome = Outcome {
            verdict,
            exit_code: None,
            error: None,
            started_at: self.now,
            finished_at: self.now,
            outputs,
            received_at: None,
        };
        let token = self.token(execution);
        Change::ExecutionFinished { of: Parent::Run(self.record.id.clone()), execution, token, outcome }
    }

    pub(crate) fn lost(&self, execution: ExecutionId) -> Change {
        let (run, token, at) = (self.record.id.clone(), self.token(execution), self.now);
        Change::ExecutionLost {
            of: Parent::Run(run),
            execution,
            token,
            silence: None,
            reason: "test".to_owned(),
            at,
        }
    }

    fn token(&self, execution: ExecutionId) -> LeaseToken {
        self.executions[&execution].state.lease().expect("only what is leased is spoken of").token
    }

    /// Leases everything, then ends it as `verdict` decides, until nothing is open. Returns the run's end.
    pub(crate) fn play(&mut self, verdict: impl Fn(u32, &str, u32) -> Verdict) -> (RunState, RunEnd) {
        self.begin();
        self.play_on(verdict)
    }

    /// Does the same for a run that has begun.
    pub(crate) fn play_on(&mut self, verdict: impl Fn(u32, &str, u32) -> Verdict) -> (RunState, RunEnd) {
        for _ in 0..10_000 {
            if self.record.state().is_terminal() {
                break;
            }
            self.now += SignedDuration::from_secs(60);
            for execution in self.open(Status::Pending) {
                self.lease(&execution);
            }
            for execution in self.open(Status::Leased) {
                if self.executions[&execution.id].state.status() == Status::Leased {
                    let place = self.place(&execution);
                    self.end(&execution, verdict(execution.step(), &place, execution.attempt));
                }
            }
        }
        let end = self.record.live.end().cloned().expect("the run ended");
        (self.record.state(), end)
    }

    /// Returns the status of each instance's last attempt that counts, as `step@node status`.
    pub(crate) fn results(&self) -> Vec<String> {
        let mut last: BTreeMap<(u32, String), (u32, Status)> = BTreeMap::new();
        for execution in self.executions.values().filter(|execution| !execution.is_withdrawn()) {
            let key = (execution.step(), self.place(execution));
            let entry = last.entry(key).or_insert((0, Status::Pending));
            if execution.attempt > entry.0 {
                *entry = (execution.attempt, execution.state.status());
            }
        }
        last.into_iter().map(|((step, node), (_, status))| format!("{step}@{node} {status}")).collect()
    }

    fn attempts(&self, (step, place): &(u32, String)) -> Vec<&Execution> {
        self.executions.values().filter(|e| e.step() == *step && self.place(e) == *place).collect()
    }

    /// Checks the rules that must always hold.
    pub(crate) fn check(&self) {
        let mut open: HashSet<(u32, String)> = HashSet::new();
        for execution in self.executions.values().filter(|execution| execution.state.status().is_open()) {
            let key = (execution.step(), self.place(execution));
            assert!(
                open.insert(key.clone()),
                "two attempts of {key:?} are open at once: {:#?}",
                self.attempts(&key)
            );
            let entry = self.plan.entry_of_step(StepIx(execution.step()));
            for before in &entry.after {
                let steps = self.plan.entries[*before].steps();
                let running = self.executions.values().find(|other| {
                    steps.clone().any(|step| step.0 == other.step()) && other.state.status().is_open()
                });
                assert!(running.is_none(), "step {} runs while {running:?} before it does", execution.step());
            }
        }
        if self.record.state().is_terminal() {
            assert!(open.is_empty(), "the run ended, and {open:?} did not");
            // An entry that never began has no items.
            if self.plan.entries.iter().all(|entry| entry.each.is_none()) {
                assert_eq!(self.results().len(), self.plan.instances(), "every instance has a record");
            }
        }
    }
}
