//! Owns the board: every open execution and every node, as the feed tells. Synchronous; nothing here waits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use downbeat_core::backend::{BackendSchema, Catalogue};
use downbeat_core::execution::{Execution, Lease, State};
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, NodeId, RunId, SessionId};
use downbeat_core::node::{NodeRecord, NodeStatus};
use downbeat_core::place;
use downbeat_core::plan::Plan;
use downbeat_core::run::RunState;
use downbeat_core::spec::OnDisconnect;
use downbeat_core::{Change, Dice, Event, Timestamp};
use downbeat_proto::message::{Assignment, Free, Held, PollAnswer};
use tokio::sync::oneshot;

use super::post::{Holding, Post};
use super::queue::{Place, Queue};

/// Why a poll cannot be parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parking {
    UnknownNode,
    OtherSession,
}

#[derive(Debug)]
struct Open {
    run: RunId,
    step: u32,
    attempt: u32,
    place: Place,
    created_at: Timestamp,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting {
        until: Option<Timestamp>,
    },
    /// Given to a node in a commit that is under way.
    Claimed {
        node: NodeId,
    },
    Held {
        node: NodeId,
    },
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Board {
    posts: HashMap<NodeId, Post>,
    open: HashMap<ExecutionId, Open>,
    plans: HashMap<RunId, Arc<Plan>>,
    queue: Queue,
    /// Made when somebody asks, forgotten when a node registers.
    catalogues: HashMap<ClusterId, Arc<Catalogue>>,
    parked: usize,
    /// Leases that were committed for a session that had ended by then.
    stray: Vec<(RunId, ExecutionId, LeaseToken)>,
    /// Pending executions that were just cancelled, for the metrics: only here it is known that they were pending.
    cancelled: usize,
    /// How long executions that were just leased had waited, for the metrics.
    waits: Vec<std::time::Duration>,
}

impl Board {
    pub(crate) fn add_node(&mut self, record: NodeRecord) {
        let record = Arc::new(record);
        self.catalogues.remove(&record.cluster);
        match self.posts.get_mut(&record.id) {
            Some(post) => {
                self.parked -= usize::from(post.is_parked());
                post.replace(record);
                self.parked += usize::from(post.is_parked());
            }
            None => {
                self.posts.insert(record.id, Post::new(record));
            }
        }
    }

    pub(crate) fn add_plan(&mut self, run: RunId, plan: Arc<Plan>) {
        self.plans.insert(run, plan);
    }

    pub(crate) fn drop_plan(&mut self, run: &RunId) {
        self.plans.remove(run);
    }

    pub(crate) fn plan(&self, run: &RunId) -> Option<&Arc<Plan>> {
        self.plans.get(run)
    }

    /// The built-in backends of a cluster, and those that its nodes declare.
    pub(crate) fn catalogue(&mut self, cluster: ClusterId) -> Arc<Catalogue> {
        let posts = &self.posts;
        let made = self.catalogues.entry(cluster).or_insert_with(|| {
            let mut declared: Vec<&BackendSchema> = Vec::new();
            let nodes = posts.values().map(|post| &post.record).filter(|node| node.cluster == cluster);
            for backend in nodes.flat_map(|node| &node.description.backends) {
                if !declared.contains(&backend) {
                    declared.push(backend);
                }
            }
            Arc::new(Catalogue::builtin().with(declared))
        });
        Arc::clone(made)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Arc<NodeRecord>> {
        self.posts.values().map(|post| &post.record)
    }

    pub(crate) fn node(&self, node: NodeId) -> Option<&Arc<NodeRecord>> {
        self.posts.get(&node).map(|post| &post.record)
    }

    pub(crate) fn is_offline(&self, node: NodeId) -> bool {
        self.posts.get(&node).is_none_or(|post| post.record.status == NodeStatus::Offline)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Whether `claim` may have something to do.
    pub(crate) fn has_work(&self) -> bool {
        self.queue.len() > 0 || !self.stray.is_empty()
    }

    pub(crate) fn parked(&self) -> usize {
        self.parked
    }

    pub(crate) fn take_waits(&mut self) -> Vec<std::time::Duration> {
        std::mem::take(&mut self.waits)
    }

    pub(crate) fn take_cancelled(&mut self) -> usize {
        std::mem::take(&mut self.cancelled)
    }

    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.queue.next_due()
    }

    /// Parks a poll: it is answered when there is something for its node.
    pub(crate) fn park(
        &mut self,
        node: NodeId,
        session: SessionId,
        poll: u64,
        free: Free,
        answer: oneshot::Sender<PollAnswer>,
    ) -> Result<(), Parking> {
        let post = self.current(node, session)?;
        let before = post.is_parked();
        post.park(poll, free, answer);
        let after = post.is_parked();
        self.parked = self.parked + usize::from(after) - usize::from(before);
        Ok(())
    }

    pub(crate) fn unpark(&mut self, node: NodeId, poll: u64) {
        self.with_post(node, |post| post.unpark(poll));
    }

    pub(crate) fn refresh(&mut self, node: NodeId, poll: u64, free: Free) -> bool {
        self.posts.get_mut(&node).is_some_and(|post| post.refresh(poll, free))
    }

    /// Every parked poll is let go: the server stops.
    pub(crate) fn let_go(&mut self) {
        let nodes: Vec<Arc<NodeRecord>> = self.nodes().cloned().collect();
        for record in nodes {
            self.posts.insert(record.id, Post::new(record));
        }
        self.parked = 0;
    }

    pub(crate) fn resynced(&mut self, node: NodeId) {
        self.with_post(node, Post::forget_ready);
    }

    fn current(&mut self, node: NodeId, session: SessionId) -> Result<&mut Post, Parking> {
        let post = self.posts.get_mut(&node).ok_or(Parking::UnknownNode)?;
        if post.record.session == session { Ok(post) } else { Err(Parking::OtherSession) }
    }

    fn with_post<T>(&mut self, node: NodeId, act: impl FnOnce(&mut Post) -> T) -> Option<T> {
        let post = self.posts.get_mut(&node)?;
        let before = post.is_parked();
        let result = act(post);
        let after = post.is_parked();
        self.parked = self.parked + usize::from(after) - usize::from(before);
        Some(result)
    }

    /// What a node says it holds, held against the board: known to be its own, known to be told to stop, or unknown.
    pub(crate) fn review(&self, node: NodeId, held: &[Held]) -> (Vec<Held>, Vec<Held>) {
        let (mut stop, mut unknown) = (Vec::new(), Vec::new());
        let post = self.posts.get(&node);
        for held in held {
            match post.and_then(|post| post.held.get(&held.execution)) {
                Some(holding) if holding.token == held.token => {
                    if holding.stop {
                        stop.push(*held);
                    }
                }
                Some(_) | None => unknown.push(*held),
            }
        }
        (stop, unknown)
    }

    /// Gives executions that are about to be created to nodes that wait for work, so that they are born leased.
    /// Whatever becomes of the commit, `release` or the feed settles it.
    pub(crate) fn reserve(&mut self, executions: &mut [Execution], now: Timestamp, dice: &mut Dice) {
        let mut full: HashSet<u32> = HashSet::new();
        for execution in executions {
            if execution.state != (State::Pending { not_before: None }) {
                continue;
            }
            let Some(plan) = self.plans.get(&execution.run).cloned() else { continue };
            let place = self.queue.place(&plan, &execution.run, execution.step, execution.pinned);
            let node = match place {
                // Those that wait longer come first.
                Place::Pinned(node) if self.queue.first_pinned(node).is_some() => None,
                Place::Pinned(node) => {
                    self.posts.get(&node).filter(|post| post.free().fleet > 0).map(|_| node)
                }
                Place::Placed(class) if full.contains(&class) || self.queue.first_placed(class).is_some() => {
                    None
                }
                Place::Placed(class) => {
                    let node = self.best_fit(class);
                    if node.is_none() {
                        full.insert(class);
                    }
                    node
                }
            };
            if let Some(node) = node {
                let lease = self.grant(node, place, now, dice);
                execution.state = State::Leased { lease, stop: false };
            }
        }
    }

    /// The commit that was to lease these did not happen.
    pub(crate) fn release<'a>(&mut self, executions: impl Iterator<Item = &'a Execution>) {
        for execution in executions {
            if let State::Leased { lease, .. } = execution.state {
                let placed = execution.pinned.is_none();
                self.with_post(lease.node, |post| post.give_back(placed));
            }
        }
    }

    /// Claims for every waiting node at once: the leases to commit.
    pub(crate) fn claim(&mut self, now: Timestamp, dice: &mut Dice) -> Vec<Change> {
        for execution in self.queue.due(now) {
            if let Some(open) = self.open.get_mut(&execution) {
                open.stage = Stage::Waiting { until: None };
                let place = open.place;
                self.queue.push(place, execution);
            }
        }
        let mut claims = Vec::new();
        let nodes: Vec<NodeId> = self.queue.pinned_nodes().collect();
        for node in nodes {
            while self.posts.get(&node).is_some_and(|post| post.free().fleet > 0)
                && let Some(execution) = self.queue.first_pinned(node)
            {
                claims.push(self.claim_one(execution, node, now, dice));
            }
        }
        for class in self.queue.waiting_classes() {
            while let Some(execution) = self.queue.first_placed(class)
                && let Some(node) = self.best_fit(class)
            {
                claims.push(self.claim_one(execution, node, now, dice));
            }
        }
        claims.extend(self.stray.drain(..).map(|(run, execution, token)| Change::ExecutionLost {
            run,
            execution,
            token,
            reason: "its agent's session had ended".to_owned(),
            at: now,
        }));
        claims
    }

    fn claim_one(&mut self, execution: ExecutionId, node: NodeId, now: Timestamp, dice: &mut Dice) -> Change {
        let open = self.open.get_mut(&execution).expect("what waits in the queue is open");
        let place = open.place;
        open.stage = Stage::Claimed { node };
        let run = open.run.clone();
        self.queue.remove(place, None, execution);
        let lease = self.grant(node, place, now, dice);
        Change::ExecutionLeased { run, execution, lease }
    }

    /// A claim was refused, or its commit failed: back into the queue, unless the feed has settled it meanwhile.
    pub(crate) fn unclaim(&mut self, change: &Change) {
        let Change::ExecutionLeased { execution, lease, .. } = change else { return };
        let Some(open) = self.open.get_mut(execution) else { return };
        if let Stage::Claimed { node } = open.stage
            && node == lease.node
        {
            open.stage = Stage::Waiting { until: None };
            let place = open.place;
            self.queue.push(place, *execution);
            let placed = matches!(place, Place::Placed(_));
            self.with_post(lease.node, |post| post.give_back(placed));
        }
    }

    fn grant(&mut self, node: NodeId, place: Place, now: Timestamp, dice: &mut Dice) -> Lease {
        let post = self.posts.get_mut(&node).expect("a node that was chosen is on the board");
        post.take(matches!(place, Place::Placed(_)));
        Lease { token: LeaseToken(dice.uuid()), node, session: post.record.session, granted_at: now }
    }

    /// The fitting node with the most free slots: work spreads.
    fn best_fit(&self, class: u32) -> Option<NodeId> {
        let class = self.queue.class(class);
        self.posts
            .values()
            .map(|post| (post.free().placed, post))
            .filter(|(free, post)| {
                let held = class.run.as_ref().map_or(0, |run| post.held_of(run));
                *free > 0
                    && place::fits(&class.placement, &class.backend, &class.action, &post.record, held)
                        .is_ok()
            })
            .max_by_key(|(free, post)| (*free, post.record.id))
            .map(|(_, post)| post.record.id)
    }

    /// Why no node takes an execution of this step, per node.
    pub(crate) fn misfits(&self, plan: &Plan, run: &RunId, execution: &Execution) -> Vec<(String, String)> {
        let task = plan.task(execution.step);
        let placement = plan.placement(execution.step).cloned().unwrap_or_default();
        let mut reasons = Vec::new();
        for post in self.posts.values() {
            let node = &post.record;
            let hostname = node.description.hostname.clone();
            let reason = match execution.pinned {
                Some(pinned) if pinned != node.id => continue,
                Some(_) if node.draining => "the node is drained".to_owned(),
                Some(_) if node.status != NodeStatus::Online => {
                    format!("the node is {}", node.status.as_str())
                }
                Some(_) => "the node carries out one step at a time, and is busy".to_owned(),
                None => match place::fits(&placement, &task.backend, &task.action, node, post.held_of(run)) {
                    Err(misfit) => misfit.to_string(),
                    Ok(()) => "all slots are taken".to_owned(),
                },
            };
            reasons.push((hostname, reason));
        }
        reasons.sort();
        reasons
    }

    /// Takes in what was committed.
    pub(crate) fn apply(&mut self, events: &[Event]) {
        let mut touched: HashSet<NodeId> = HashSet::new();
        for event in events {
            self.apply_one(&event.change, &mut touched);
        }
        for node in touched {
            self.with_post(node, Post::flush);
        }
        self.queue.forget_classes();
    }

    fn apply_one(&mut self, change: &Change, touched: &mut HashSet<NodeId>) {
        match change {
            Change::NodeRegistered { registration } => {
                let draining = self.node(registration.node).is_some_and(|record| record.draining);
                self.add_node(NodeRecord {
                    id: registration.node,
                    cluster: registration.cluster,
                    session: registration.session,
                    description: registration.description.clone(),
                    status: NodeStatus::Online,
                    draining,
                    registered_at: registration.at,
                    seen_at: registration.at,
                });
            }
            Change::NodeMoved { node, to, .. } => self.alter(*node, |record| record.status = *to),
            Change::NodeDrainSet { node, draining, .. } => {
                self.alter(*node, |record| record.draining = *draining);
            }
            Change::RunCreated { run } => {
                if !self.plans.contains_key(&run.id)
                    && let Ok(plan) = Plan::compile(Arc::clone(&run.definition), Arc::clone(&run.resolved))
                {
                    self.plans.insert(run.id.clone(), Arc::new(plan));
                }
            }
            Change::ExecutionsAdded { executions, .. } => {
                for execution in executions {
                    self.add_execution(execution, touched);
                }
            }
            Change::ExecutionLeased { run: _, execution, lease } => {
                let waited = self.open.get(execution).map(|open| {
                    let place = open.place;
                    if let Stage::Waiting { until } = open.stage {
                        self.queue.remove(place, until, *execution);
                    }
                    lease.granted_at.duration_since(open.created_at).unsigned_abs()
                });
                self.waits.extend(waited);
                self.hold(*execution, lease, false, touched);
            }
            Change::ExecutionFinished { execution, .. } | Change::ExecutionLost { execution, .. } => {
                self.close(*execution);
            }
            Change::ExecutionGivenUp { execution, .. } | Change::ExecutionSkipped { execution, .. } => {
                self.close(*execution);
            }
            Change::ExecutionCancelRequested { execution, .. } => {
                match self.open.get(execution).map(|open| open.stage) {
                    Some(Stage::Held { node }) => {
                        self.with_post(node, |post| post.stop(*execution));
                        touched.insert(node);
                    }
                    Some(Stage::Waiting { .. } | Stage::Claimed { .. }) => {
                        self.cancelled += 1;
                        self.close(*execution);
                    }
                    None => {}
                }
            }
            Change::RunMoved { run, path, .. } => {
                if path.last().copied().is_some_and(RunState::is_terminal) {
                    self.plans.remove(run);
                }
            }
            Change::ExecutionStarted { .. } | Change::RunTaken { .. } | Change::RunCancelRequested { .. } => {
            }
        }
    }

    fn alter(&mut self, node: NodeId, change: impl FnOnce(&mut NodeRecord)) {
        if let Some(post) = self.posts.get_mut(&node) {
            change(Arc::make_mut(&mut post.record));
        }
    }

    /// An execution that is open, from the feed or from the store.
    pub(crate) fn add_execution(&mut self, execution: &Execution, touched: &mut HashSet<NodeId>) {
        if !execution.state.status().is_open() {
            return;
        }
        let Some(plan) = self.plans.get(&execution.run).cloned() else { return };
        let place = self.queue.place(&plan, &execution.run, execution.step, execution.pinned);
        let until = match execution.state {
            State::Pending { not_before } => not_before,
            _ => None,
        };
        let open = Open {
            run: execution.run.clone(),
            step: execution.step,
            attempt: execution.attempt,
            place,
            created_at: execution.created_at,
            stage: Stage::Waiting { until },
        };
        self.open.insert(execution.id, open);
        match &execution.state {
            State::Pending { not_before: None } => self.queue.push(place, execution.id),
            State::Pending { not_before: Some(until) } => self.queue.delay(*until, execution.id),
            State::Leased { lease, stop } => {
                if lease.granted_at == execution.created_at {
                    self.waits.push(std::time::Duration::ZERO);
                }
                self.hold(execution.id, lease, *stop, touched);
            }
            State::Running { lease, stop, .. } => self.keep(execution.id, lease, *stop),
            _ => {}
        }
    }

    /// A lease was committed: the node is to get the work.
    fn hold(&mut self, execution: ExecutionId, lease: &Lease, stop: bool, touched: &mut HashSet<NodeId>) {
        let Some(open) = self.open.get_mut(&execution) else { return };
        open.stage = Stage::Held { node: lease.node };
        let (run, step, attempt) = (open.run.clone(), open.step, open.attempt);
        let Some(post) = self.posts.get_mut(&lease.node) else { return };
        if post.record.session != lease.session {
            self.stray.push((run, execution, lease.token));
            return;
        }
        post.held.insert(execution, Holding { token: lease.token, run: run.clone(), stop });
        if let Some(plan) = self.plans.get(&run) {
            post.assign(assignment(plan, run, execution, lease.token, step, attempt));
            touched.insert(lease.node);
        }
    }

    /// A lease whose work is known to have reached its node.
    fn keep(&mut self, execution: ExecutionId, lease: &Lease, stop: bool) {
        let Some(open) = self.open.get_mut(&execution) else { return };
        open.stage = Stage::Held { node: lease.node };
        let run = open.run.clone();
        if let Some(post) = self.posts.get_mut(&lease.node) {
            post.held.insert(execution, Holding { token: lease.token, run, stop });
        }
    }

    fn close(&mut self, execution: ExecutionId) {
        let Some(open) = self.open.remove(&execution) else { return };
        match open.stage {
            Stage::Waiting { until } => self.queue.remove(open.place, until, execution),
            Stage::Claimed { node } => {
                let placed = matches!(open.place, Place::Placed(_));
                self.with_post(node, |post| post.give_back(placed));
            }
            Stage::Held { node } => {
                if let Some(post) = self.posts.get_mut(&node) {
                    post.held.remove(&execution);
                }
            }
        }
    }
}

/// What an agent is told of an execution.
pub(crate) fn assignment(
    plan: &Plan,
    run: RunId,
    execution: ExecutionId,
    token: LeaseToken,
    step: u32,
    attempt: u32,
) -> Assignment {
    let task = plan.task(step);
    Assignment {
        execution,
        token,
        run,
        step,
        attempt,
        placed: plan.is_placed(step),
        backend: task.backend.clone(),
        action: task.action.clone(),
        params: task.params.clone(),
        timeout: task.timeout_or_default().0,
        stop_on_disconnect: task.on_disconnect == Some(OnDisconnect::Stop),
    }
}
