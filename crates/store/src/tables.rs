//! Owns what a change does to the tables and which guard refuses it: the one specification that every store runs.
//! The memory store keeps all its rows here; the SQL stores load the rows that a batch touches, apply the batch, and
//! write back what differs. What no guard looks at (definitions, descriptions, output) is not here.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_core::change::{Applied, Change, Refusal, Silence};
use downbeat_core::execution::{self, Event, Execution, Illegal, Lease, Status};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId, SessionId};
use downbeat_core::node::{Former, NodeRecord, NodeStatus, Registration};
use downbeat_core::run::{RunEnd, RunRecord, RunState, check_path};
use downbeat_core::work::Parent;
use jiff::Timestamp;

use crate::batch::Needs;
use crate::uses::Uses;

/// The part of a node that moves.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeLive {
    pub(crate) session: SessionId,
    pub(crate) status: NodeStatus,
    pub(crate) draining: bool,
    pub(crate) registered_at: Timestamp,
    pub(crate) seen_at: Timestamp,
}

impl NodeLive {
    pub(crate) fn of(node: &NodeRecord) -> Self {
        Self {
            session: node.session,
            status: node.status,
            draining: node.draining,
            registered_at: node.registered_at,
            seen_at: node.seen_at,
        }
    }
}

/// The part of a run that moves.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunLive {
    pub(crate) state: RunState,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Option<Timestamp>,
    pub(crate) end: Option<RunEnd>,
    pub(crate) cancel_requested_at: Option<Timestamp>,
    pub(crate) paused_at: Option<Timestamp>,
    pub(crate) admitted_at: Option<Timestamp>,
    pub(crate) owner: ServerId,
    pub(crate) epoch: u64,
}

impl RunLive {
    pub(crate) fn of(run: &RunRecord) -> Self {
        Self {
            state: run.state,
            started_at: run.started_at,
            finished_at: run.finished_at,
            end: run.end.clone(),
            cancel_requested_at: run.cancel_requested_at,
            paused_at: run.paused_at,
            admitted_at: run.admitted_at,
            owner: run.owner,
            epoch: run.epoch,
        }
    }

    /// It waits for its turn.
    fn waits(&self) -> bool {
        self.state == RunState::Pending && self.admitted_at.is_none()
    }

    /// It had its turn, and has not ended.
    fn is_under_way(&self) -> bool {
        !self.state.is_terminal() && self.state != RunState::PreRun && !self.waits()
    }
}

/// How many runs wait and are under way, of those that were not loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    pub(crate) waiting: u32,
    pub(crate) under_way: u32,
}

/// Rows by id: all of them, or those that one batch touches.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tables {
    pub(crate) clusters: BTreeSet<ClusterId>,
    pub(crate) nodes: BTreeMap<NodeId, NodeLive>,
    /// Sessions whose node was deleted while it had them.
    pub(crate) deleted: BTreeSet<(NodeId, SessionId)>,
    pub(crate) runs: BTreeMap<RunId, RunLive>,
    /// The cluster of each run; of those that one batch looks at, only where it has to do with limits.
    pub(crate) homes: BTreeMap<RunId, ClusterId>,
    /// The run of each idempotency key.
    pub(crate) keys: BTreeMap<(ClusterId, String), RunId>,
    pub(crate) executions: BTreeMap<ExecutionId, Execution>,
    /// The nodes that exclusive runs have for themselves.
    pub(crate) holds: BTreeMap<NodeId, RunId>,
    /// Nothing where all runs are here.
    pub(crate) elsewhere: Elsewhere,
    pub(crate) uses: Uses,
    /// They are those of a copy, which counts no uses: what was given out had its place elsewhere.
    is_copy: bool,
}

/// What became of a batch, before it is numbered.
#[derive(Debug)]
pub(crate) struct Verdicts {
    /// In the order given.
    pub(crate) outcomes: Vec<Applied>,
    /// Places of the applied changes in the batch, in the order in which they were applied.
    pub(crate) applied: Vec<usize>,
    /// Uses of rates that were over by then are gone.
    pub(crate) uses_over: Option<Timestamp>,
}

impl Verdicts {
    /// Numbers the applied changes from `last_seq` on, in the order in which they were applied.
    pub(crate) fn seqs(&self, last_seq: u64) -> Vec<Option<u64>> {
        let mut seqs = vec![None; self.outcomes.len()];
        for (seq, &place) in (last_seq + 1..).zip(&self.applied) {
            seqs[place] = Some(seq);
        }
        seqs
    }
}

impl Tables {
    /// Applies a batch: kinds in the order of their phase, within a kind as given.
    pub(crate) fn apply_all(&mut self, changes: &[Change]) -> Verdicts {
        let mut order: Vec<usize> = (0..changes.len()).collect();
        order.sort_by_key(|&place| changes[place].phase());
        let mut outcomes = vec![Ok(()); changes.len()];
        order.retain(|&place| {
            outcomes[place] = self.apply(&changes[place]);
            outcomes[place].is_ok()
        });
        let uses_over = self.uses.latest.take();
        if let Some(at) = uses_over {
            self.uses.forget(at);
        }
        Verdicts { outcomes, applied: order, uses_over }
    }

    /// Those of these rows that there are.
    pub(crate) fn pick(&self, needs: &Needs<'_>) -> Self {
        let find_key = |&(cluster, key): &(ClusterId, &str)| {
            let key = (cluster, key.to_owned());
            self.keys.get(&key).cloned().map(|run| (key, run))
        };
        Self {
            clusters: self.clusters.clone(),
            nodes: needs.nodes.iter().filter_map(|id| Some((*id, self.nodes.get(id)?.clone()))).collect(),
            deleted: needs.deleted.intersection(&self.deleted).copied().collect(),
            runs: needs
                .runs
                .iter()
                .filter_map(|&id| Some((id.clone(), self.runs.get(id)?.clone())))
                .collect(),
            keys: needs.keys.iter().filter_map(find_key).collect(),
            executions: needs
                .executions
                .iter()
                .filter_map(|id| Some((*id, self.executions.get(id)?.clone())))
                .chain(self.at_work(&needs.taken).map(|execution| (execution.id, execution.clone())))
                .collect(),
            holds: self
                .holds
                .iter()
                .filter(|(node, run)| needs.held.contains(node) || needs.holders.contains(run))
                .map(|(node, run)| (*node, run.clone()))
                .collect(),
            homes: BTreeMap::new(),
            elsewhere: Elsewhere::default(),
            uses: Uses::default(),
            is_copy: true,
        }
    }

    /// Puts rows in the place of those that they were picked from; what was held by `held` then, and the nodes that were
    /// needed, are as they are now.
    pub(crate) fn take_back(&mut self, picked: Self, needs: &Needs<'_>, held: &BTreeMap<NodeId, RunId>) {
        self.holds.retain(|node, _| !held.contains_key(node));
        self.holds.extend(picked.holds);
        for node in &needs.nodes {
            self.nodes.remove(node);
        }
        self.nodes.extend(picked.nodes);
        self.deleted.extend(picked.deleted);
        self.runs.extend(picked.runs);
        self.keys.extend(picked.keys);
        self.homes.extend(picked.homes);
        self.executions.extend(picked.executions);
    }

    /// Applies changes as they come, however their kinds are ordered: what another store applied in this order,
    /// without the guards that only counted then. The first that is refused ends it; its place is answered.
    pub(crate) fn apply_in_order(&mut self, changes: &[Change]) -> Result<(), (usize, Refusal)> {
        self.is_copy = true;
        for (place, change) in changes.iter().enumerate() {
            self.apply(change).map_err(|refusal| (place, refusal))?;
        }
        Ok(())
    }

    fn apply(&mut self, change: &Change) -> Applied {
        match change {
            Change::NodeRegistered { registration } => self.register(registration),
            Change::NodeMoved { node, session, from, to, silent_since, at: _ } => {
                self.unheard(silent_since.map(|since| Silence { node: *node, since }))?;
                let node = self.nodes.get_mut(node).ok_or(Refusal::NotFound)?;
                if node.session != *session {
                    return Err(Refusal::StaleSession);
                }
                if node.status != *from {
                    return Err(Refusal::WrongState);
                }
                node.status = *to;
                Ok(())
            }
            Change::NodeDrainSet { node, draining, by: _, at: _ } => {
                self.nodes.get_mut(node).ok_or(Refusal::NotFound)?.draining = *draining;
                Ok(())
            }
            Change::NodeProblemsSet { node, session, problems: _, at: _ } => {
                self.has_session(*node, *session)
            }
            Change::NodeDeleted { node, session, by: _, silent_since, at: _ } => {
                self.unheard(silent_since.map(|since| Silence { node: *node, since }))?;
                self.has_session(*node, *session)?;
                self.nodes.remove(node);
                self.holds.remove(node);
                self.deleted.insert((*node, *session));
                Ok(())
            }
            Change::RunCreated { run, max_pending } => self.create_run(run, *max_pending),
            Change::RunTaken { run, owner, epoch, at: _ } => {
                let run = self.runs.get_mut(run).ok_or(Refusal::NotFound)?;
                if run.epoch.checked_add(1) != Some(*epoch) {
                    return Err(Refusal::StaleEpoch);
                }
                if run.state.is_terminal() {
                    return Err(Refusal::WrongState);
                }
                run.owner = *owner;
                run.epoch = *epoch;
                Ok(())
            }
            Change::RunCancelRequested { run, by: _, at } => {
                let run = self.runs.get_mut(run).ok_or(Refusal::NotFound)?;
                if run.state.is_terminal() || run.cancel_requested_at.is_some() {
                    return Err(Refusal::WrongState);
                }
                run.cancel_requested_at = Some(*at);
                Ok(())
            }
            Change::RunPauseSet { run, paused, by: _, at } => {
                let run = self.runs.get_mut(run).ok_or(Refusal::NotFound)?;
                if run.state.is_terminal() || run.paused_at.is_some() == *paused {
                    return Err(Refusal::WrongState);
                }
                run.paused_at = paused.then_some(*at);
                Ok(())
            }
            Change::RunAdmitted { run, epoch, limit, nodes, at } => {
                self.admit(run, *epoch, *limit, nodes, *at)
            }
            Change::ExecutionsAdded { run, epoch, executions, at: _ } => {
                self.owned(run, *epoch)?;
                self.add_executions(run, executions)
            }
            Change::ExecutionLeased { of: Parent::Run(run), execution, lease } => {
                self.is_free(lease.node, run)?;
                self.lease(run, *execution, lease)
            }
            Change::ExecutionStarted { of: Parent::Run(run), execution, token, at, received_at } => {
                let started = Event::Started { token: *token, at: *at, received_at: *received_at };
                self.step(run, *execution, &started)
            }
            Change::ExecutionFinished { of: Parent::Run(run), execution, token, outcome } => {
                self.step(run, *execution, &Event::Finished { token: *token, outcome: outcome.clone() })
            }
            Change::ExecutionLost { of: Parent::Run(run), execution, token, silence, reason, at } => {
                self.unheard(*silence)?;
                self.step(
                    run,
                    *execution,
                    &Event::LeaseEnded { token: *token, reason: reason.clone(), at: *at },
                )
            }
            Change::ExecutionCancelRequested { run, execution, epoch, reason, at } => {
                self.owned(run, *epoch)?;
                self.step(run, *execution, &Event::CancelRequested { reason: reason.clone(), at: *at })
            }
            Change::ExecutionGivenUp { run, execution, epoch, error, at } => {
                self.owned(run, *epoch)?;
                self.step(run, *execution, &Event::GivenUp { error: error.clone(), at: *at })
            }
            Change::ExecutionSkipped { run, execution, epoch, reason, at } => {
                self.owned(run, *epoch)?;
                self.step(run, *execution, &Event::Skipped { reason: reason.clone(), at: *at })
            }
            Change::RunMoved { run, epoch, path, end, at } => {
                move_run(self.owned(run, *epoch)?, path, end, *at)?;
                if path.last().is_some_and(|state| state.is_terminal()) {
                    self.holds.retain(|_, holder| holder != run);
                }
                Ok(())
            }
            Change::Unknown { .. } => Err(Refusal::NotKnownToAll),
        }
    }

    fn unheard(&self, silence: Option<Silence>) -> Applied {
        let heard = silence.is_some_and(|silence| {
            self.nodes.get(&silence.node).is_some_and(|node| node.seen_at > silence.since)
        });
        if heard { Err(Refusal::Heard) } else { Ok(()) }
    }

    /// The session is the node's current one.
    fn has_session(&self, node: NodeId, session: SessionId) -> Applied {
        match self.nodes.get(&node) {
            None => Err(Refusal::NotFound),
            Some(node) if node.session != session => Err(Refusal::StaleSession),
            Some(_) => Ok(()),
        }
    }

    fn register(&mut self, registration: &Registration) -> Applied {
        if !self.clusters.contains(&registration.cluster) {
            return Err(Refusal::NotFound);
        }
        let former = match registration.former {
            Former::Any => Ok(()),
            Former::Nobody if self.nodes.contains_key(&registration.node) => Err(Refusal::StaleSession),
            Former::Nobody => Ok(()),
            Former::Session { session, silent_since } => {
                // A copy may have heard of a heartbeat that came after the registration.
                let silence = silent_since.filter(|_| !self.is_copy);
                self.unheard(silence.map(|since| Silence { node: registration.node, since }))?;
                self.has_session(registration.node, session)
            }
        };
        former?;
        if self.deleted.contains(&(registration.node, registration.session)) {
            return Err(Refusal::Deleted);
        }
        // It was under way for so long that a newer agent has taken the node.
        if let Some(node) = self.nodes.get(&registration.node)
            && registration.at < node.registered_at
            && registration.session != node.session
        {
            return Err(Refusal::StaleSession);
        }
        // A person drained it, so a new session of it stays drained.
        let draining = self.nodes.get(&registration.node).is_some_and(|node| node.draining);
        let live = NodeLive {
            session: registration.session,
            status: NodeStatus::Online,
            draining,
            registered_at: registration.at,
            seen_at: registration.at,
        };
        self.nodes.insert(registration.node, live);
        Ok(())
    }

    fn create_run(&mut self, run: &RunRecord, max_pending: Option<u32>) -> Applied {
        if !self.clusters.contains(&run.cluster) {
            return Err(Refusal::NotFound);
        }
        if self.runs.contains_key(&run.id) {
            return Err(Refusal::RunExists(run.id.clone()));
        }
        let key = run.idempotency_key.as_ref().map(|key| (run.cluster, key.clone()));
        if let Some(first) = key.as_ref().and_then(|key| self.keys.get(key)) {
            return Err(Refusal::KeyInUse(first.clone()));
        }
        if let Some(max_pending) = max_pending {
            let pending = self.elsewhere.waiting + self.count_runs(RunLive::waits);
            if pending >= max_pending {
                return Err(Refusal::QueueFull { pending });
            }
        }
        self.keys.extend(key.map(|key| (key, run.id.clone())));
        self.runs.insert(run.id.clone(), RunLive::of(run));
        self.homes.insert(run.id.clone(), run.cluster);
        Ok(())
    }

    fn count_runs(&self, counts: impl Fn(&RunLive) -> bool) -> u32 {
        u32::try_from(self.runs.values().filter(|run| counts(run)).count()).unwrap_or(u32::MAX)
    }

    fn admit(
        &mut self,
        id: &RunId,
        epoch: u64,
        limit: Option<u32>,
        nodes: &[NodeId],
        at: Timestamp,
    ) -> Applied {
        let run = self.owned(id, epoch)?;
        if !run.waits() || run.paused_at.is_some() || run.cancel_requested_at.is_some() {
            return Err(Refusal::WrongState);
        }
        if let Some(limit) = limit {
            let running = self.elsewhere.under_way + self.count_runs(RunLive::is_under_way);
            if running >= limit {
                return Err(Refusal::NoRoom { running });
            }
        }
        for node in nodes {
            self.is_free(*node, id)?;
        }
        let wanted: BTreeSet<NodeId> = nodes.iter().copied().collect();
        if let Some(other) = self.at_work(&wanted).find(|execution| execution.run() != id) {
            return Err(Refusal::NodeHeld(other.run().clone()));
        }
        self.holds.extend(wanted.into_iter().map(|node| (node, id.clone())));
        self.owned(id, epoch)?.admitted_at = Some(at);
        Ok(())
    }

    /// No other run holds the node.
    fn is_free(&self, node: NodeId, run: &RunId) -> Applied {
        match self.holds.get(&node) {
            Some(holder) if holder != run => Err(Refusal::NodeHeld(holder.clone())),
            _ => Ok(()),
        }
    }

    /// What is leased to these nodes, or runs there.
    fn at_work<'a>(&'a self, nodes: &'a BTreeSet<NodeId>) -> impl Iterator<Item = &'a Execution> {
        // The memory store has all executions here, and seldom anybody who asks.
        let all = if nodes.is_empty() { None } else { Some(self.executions.values()) };
        all.into_iter().flatten().filter(|execution| {
            execution.state.status().is_open()
                && execution.state.lease().is_some_and(|lease| nodes.contains(&lease.node))
        })
    }

    /// All or none: an id that is in use, also within the change itself, an execution of another run, or one that is
    /// born at a node that another run holds, or without room in one of its limits, refuses it.
    fn add_executions(&mut self, run: &RunId, executions: &[Execution]) -> Applied {
        // Before any id is looked at, of which a store learns last that it is in use.
        let takes = |each: &Execution| each.limits.is_some() && held(each).is_some();
        let uses = executions.iter().any(takes).then(|| self.uses.clone());
        let added = self.add_leases(run, executions).and_then(|()| self.add_rows(run, executions));
        if let (Err(_), Some(uses)) = (&added, uses) {
            self.uses = uses;
        }
        added
    }

    fn add_leases(&mut self, run: &RunId, executions: &[Execution]) -> Applied {
        for execution in executions {
            if let Some(lease) = held(execution) {
                self.is_free(lease.node, run)?;
                self.take_places(run, execution, lease)?;
            }
        }
        Ok(())
    }

    fn add_rows(&mut self, run: &RunId, executions: &[Execution]) -> Applied {
        for (place, execution) in executions.iter().enumerate() {
            if execution.run() != run || self.executions.contains_key(&execution.id) {
                for added in &executions[..place] {
                    self.executions.remove(&added.id);
                }
                return Err(Refusal::WrongState);
            }
            self.executions.insert(execution.id, execution.clone());
        }
        Ok(())
    }

    fn lease(&mut self, run: &RunId, id: ExecutionId, lease: &Lease) -> Applied {
        let waiting = self.executions.get(&id).filter(|execution| {
            execution.run() == run
                && execution.limits.is_some()
                && execution.state.status() == Status::Pending
        });
        if let Some(execution) = waiting.cloned() {
            self.take_places(run, &execution, lease)?;
        }
        self.step(run, id, &Event::Leased { lease: *lease })
    }

    /// Takes what the limits of an execution ask for, or refuses.
    fn take_places(&mut self, run: &RunId, execution: &Execution, lease: &Lease) -> Applied {
        let Some(limits) = execution.limits.as_ref().filter(|_| !self.is_copy) else { return Ok(()) };
        let cluster = *self.homes.get(run).ok_or(Refusal::NotFound)?;
        self.uses.take(cluster, execution.id, limits, lease.granted_at)
    }

    fn owned(&mut self, run: &RunId, epoch: u64) -> Result<&mut RunLive, Refusal> {
        let run = self.runs.get_mut(run).ok_or(Refusal::NotFound)?;
        if run.epoch == epoch { Ok(run) } else { Err(Refusal::StaleEpoch) }
    }

    fn step(&mut self, run: &RunId, id: ExecutionId, event: &Event) -> Applied {
        // Whoever names the wrong run would else put an event into that run's feed.
        let execution = self.executions.get_mut(&id).filter(|execution| execution.run() == run);
        let execution = execution.ok_or(Refusal::NotFound)?;
        execution.state = execution::step(&execution.state, event).map_err(|illegal| match illegal {
            Illegal::StaleLease => Refusal::StaleLease,
            Illegal::WrongState { .. } => Refusal::WrongState,
        })?;
        // Only the places that were taken here; where a batch loaded few rows, the store removes what it has itself.
        if let (Some(limits), Some(lease)) = (&execution.limits, execution.state.lease())
            && !execution.state.status().is_open()
            && let Some(cluster) = self.homes.get(run)
        {
            self.uses.give_back(*cluster, id, limits, lease.granted_at);
        }
        Ok(())
    }
}

/// The lease that an execution has now.
pub(crate) fn held(execution: &Execution) -> Option<&Lease> {
    execution.state.lease().filter(|_| execution.state.status().is_open())
}

fn move_run(run: &mut RunLive, path: &[RunState], end: &Option<RunEnd>, at: Timestamp) -> Applied {
    let to = check_path(run.state, path).map_err(|_| Refusal::WrongState)?;
    if path.contains(&RunState::Running) {
        run.started_at.get_or_insert(at);
    }
    if to.is_terminal() && !path.is_empty() {
        run.finished_at = Some(at);
        run.end.clone_from(end);
    }
    run.state = to;
    Ok(())
}
