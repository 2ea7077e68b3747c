//! Begins the passes that are due, and moves each of their walks from leaf to leaf.

use super::attempts::{Active, Again, End, Ended};
use super::passes::{At, EntryEnd, OpenPass, Walk};
use super::prepare::Prepared;
use super::progress::{Progress, Turn};
use crate::execution::{Execution, State};
use crate::ids::{ExecutionId, NodeId};
use crate::plan::{ItemIx, NodeIx, PassIx, Shape, StepIx, WalkIx};
use crate::run::Instance;
use crate::spec::Condition;
use crate::work::Origin;

impl Progress {
    /// Decides every pass that is due, until there is nothing more to decide.
    pub(super) fn run_to_fixpoint(&mut self, turn: &mut Turn<'_>) {
        let pausing = self.waves.take_pausing();
        self.passes.add_due(pausing);
        // Decisions of a complete portion are committed before the next ones are made, so that they take no memory.
        while !self.is_full() {
            if self.decide_next(turn) {
                continue;
            }
            if let Some(pass) = self.next_due(turn) {
                self.decide(pass, turn);
            } else if !self.sweep_line() && !self.use_room(turn) {
                break;
            }
        }
        self.is_unfinished = self.is_full();
        self.finish(turn);
    }

    fn decide(&mut self, pass: PassIx, turn: &mut Turn<'_>) {
        // A pass of a graph that was carried over as a whole leaves no record: nothing that happens may make a difference.
        let is_done = self.plan.shape == Shape::Graph && self.is_whole(pass);
        if self.has_nothing_to_do(pass) || (is_done && self.condition_holds(pass).is_ok()) {
            return self.passes.end(&self.plan, pass, EntryEnd::Succeeded);
        }
        match self.pass_runs(pass) {
            // A pass whose instances were all carried over needs no room.
            Ok(()) if self.plan.definition.max_parallel.is_some() && !self.is_whole(pass) => {
                self.room.add(pass);
            }
            Ok(()) => self.open(pass, turn),
            Err(reason) => {
                let open = self.plain_walks_of(pass);
                let walks = self.passes.open(pass, open);
                self.agenda.set_pass(pass, walks, Some(reason));
            }
        }
    }

    pub(super) fn open(&mut self, pass: PassIx, turn: &mut Turn<'_>) {
        let open = match self.walks_of(pass) {
            Ok(open) => open,
            Err(error) => return self.fail_pass(pass, error, turn),
        };
        self.waves.begin(self.wave(pass));
        let walks = self.passes.open(pass, open);
        self.agenda.set_pass(pass, walks, None);
    }

    /// Returns the walks of a pass that begins: one for each node, one for each item, or a single one.
    pub(super) fn walks_of(&mut self, pass: PassIx) -> Result<OpenPass, String> {
        let Some(items) = self.items_of(pass)? else { return Ok(self.plain_walks_of(pass)) };
        self.note_items(pass, &items);
        self.instances += items.len() * self.plan.entry_of(pass).steps().len();
        let walks = (0..).zip(items.iter()).map(|(item, _)| Walk::new(None, Some(ItemIx(item)))).collect();
        Ok(OpenPass::new(walks, Some(items)))
    }

    /// Returns the walks of a pass without items. An entry whose items are not known has one walk.
    pub(super) fn plain_walks_of(&self, pass: PassIx) -> OpenPass {
        let walks = match self.plan.nodes_of_pass(pass) {
            Some(nodes) => nodes.iter().map(|&node| Walk::new(Some(node), None)).collect(),
            None => vec![Walk::new(None, None)],
        };
        OpenPass::new(walks, None)
    }

    /// Fails the first leaf of a pass whose items are invalid. The consequences are those of any failure.
    fn fail_pass(&mut self, pass: PassIx, error: String, turn: &mut Turn<'_>) {
        let open = self.plain_walks_of(pass);
        let _walks = self.passes.open(pass, open);
        let at = At { pass, walk: WalkIx(0), step: self.plan.entry_of(pass).first };
        let state = State::Failed { lease: None, outcome: None, error: Some(error), at: turn.now };
        let execution = self.record(at, Prepared::first(), state, turn);
        self.instance_failed(Ended { execution, at, end: End::Unsent }, turn);
        self.passes.next_leaf(pass, at.walk);
        self.advance(pass, at.walk, turn);
    }

    /// Returns `Ok` if a node takes part in a pass that begins; else the reason why it does not.
    pub(super) fn joins(&self, pass: PassIx, walk: WalkIx, turn: &Turn<'_>) -> Result<(), String> {
        let Some(node) = self.passes.walk(pass, walk).node else { return Ok(()) };
        if self.condition(pass) == Some(Condition::OnFailure) {
            if self.plan.definition.rollout.is_some() {
                self.joins_on_failure(pass, walk, node)?;
            }
            // The step also runs on nodes that failed, if they are reachable.
            let gone = (turn.reach)(self.plan.node(node).id).fails(false);
            return gone.map_or(Ok(()), |why| Err(format!("the node {why}")));
        }
        let left = self.failures.left_in(node);
        left.map_or(Ok(()), |step| Err(format!("the node failed in {}", self.step_text(step))))
    }

    /// Returns `Ok` if an on-failure step of a roll-out runs on a node: the node failed, the budget is spent, or the run
    /// timed out.
    fn joins_on_failure(&self, pass: PassIx, walk: WalkIx, node: NodeIx) -> Result<(), String> {
        if walk.0 >= self.waves.nodes(&self.plan) {
            return Err("the roll-out did not reach the node".to_owned());
        }
        let first = self.plan.entry_of(pass).first;
        let failed = self.failures.left_in(node).is_some_and(|step| step < first);
        if failed || self.failures.fail_fast().is_some() || self.has_timed_out() {
            Ok(())
        } else {
            Err("nothing failed on this node, and max_failures was not exceeded".to_owned())
        }
    }

    /// Moves a walk on until its next attempt is created or the walk ends.
    pub(super) fn advance(&mut self, pass: PassIx, walk: WalkIx, turn: &mut Turn<'_>) {
        loop {
            let position = self.passes.walk(pass, walk).position;
            let Some(step) = self.plan.entry_of(pass).step(position) else {
                return self.walk_ended(pass, walk);
            };
            let at = At { pass, walk, step };
            if self.is_carried(at) {
                self.passes.mark_reused(pass);
                self.passes.next_leaf(pass, walk);
                continue;
            }
            match self.leaf_runs(at) {
                Err(reason) => {
                    let state = State::Skipped { reason, at: turn.now };
                    self.record(at, Prepared::first(), state, turn);
                    self.passes.mark_skipped(pass);
                }
                Ok(()) => {
                    if self.is_bounded(pass) && !self.passes.walk(pass, walk).begun {
                        return self.line_up(pass, walk);
                    }
                    let first = Again { patience: self.first_patience(step, turn.now), ..Again::default() };
                    let Err(unsent) = self.attempt(at, first, turn) else { return };
                    self.instance_failed(unsent, turn);
                }
            }
            self.passes.next_leaf(pass, walk);
        }
    }

    pub(super) fn instance(&self, at: At) -> Instance {
        let Walk { node, item, .. } = *self.passes.walk(at.pass, at.walk);
        Instance { step: at.step, node: node.map(|node| self.plan.node(node).id), item }
    }

    /// Returns whether an instance succeeded in the run that this one retries; this run has its own record of that.
    pub(super) fn is_carried(&self, at: At) -> bool {
        !self.carried.is_empty() && self.carried.contains(&self.instance(at))
    }

    /// Returns whether every instance of a pass succeeded in the run that this one retries, or there are no instances.
    pub(super) fn is_whole(&mut self, pass: PassIx) -> bool {
        let entry = self.plan.entry_of(pass);
        if entry.each.is_some() {
            return self.has_nothing_to_do(pass);
        }
        let has = |node: Option<NodeId>| {
            entry.steps().all(|step| self.carried.contains(&Instance { step, node, item: None }))
        };
        match self.plan.nodes_of_pass(pass) {
            _ if self.carried.is_empty() => false,
            Some(nodes) => nodes.iter().all(|node| has(Some(self.plan.node(*node).id))),
            None => has(None),
        }
    }

    /// Creates the next attempt of an instance. If it cannot be sent, it is recorded as failed and returned.
    pub(super) fn attempt(
        &mut self,
        at: At,
        Again { former, not_before, patience }: Again,
        turn: &mut Turn<'_>,
    ) -> Result<(), Ended> {
        self.passes.mark_begun(at.pass, at.walk);
        let walk = self.passes.walk_mut(at.pass, at.walk);
        walk.attempt += 1;
        let number = walk.attempt;
        let node = self.pinned(at);
        let gone = node.and_then(|id| (turn.reach)(id).fails(patience.is_some()));
        let attempt = match gone {
            Some(why) => Err(format!("node {} {why}", self.hostname(at).unwrap_or_default())),
            None => self.prepare(at, number, turn),
        };
        let ended = former.map(|former| former.end.status());
        let attempt = match attempt {
            Ok(attempt) => Prepared { former: ended, ..attempt },
            Err(error) => {
                let state = State::Failed { lease: None, outcome: None, error: Some(error), at: turn.now };
                let execution =
                    self.record(at, Prepared { number, former: ended, ..Prepared::first() }, state, turn);
                self.waves.note_end(turn.now);
                return Err(Ended { execution, at, end: End::Unsent });
            }
        };
        let id = self.record(at, attempt, State::Pending { not_before }, turn);
        let former = former.map(|former| former.execution);
        let is_placed = node.is_none() && self.plan.task(at.step).approve.is_none();
        let unfit_since = is_placed.then(|| not_before.unwrap_or(turn.now));
        self.attempts
            .add(id, Active { at, node, lease: None, due: None, patience, not_before, unfit_since, former });
        if is_placed {
            self.look_soon(turn.now);
        }
        Ok(())
    }

    fn record(&mut self, at: At, attempt: Prepared, state: State, turn: &mut Turn<'_>) -> ExecutionId {
        let execution = self.execution(at, attempt, state, turn);
        let id = execution.id;
        self.add(execution);
        id
    }

    fn execution(&self, at: At, attempt: Prepared, state: State, turn: &mut Turn<'_>) -> Execution {
        let Prepared { number, former, params, limits, cache_key } = attempt;
        Execution {
            id: ExecutionId(turn.dice.uuid_at(turn.now)),
            of: Origin::Step {
                run: self.run.clone(),
                step: at.step.0,
                item: self.passes.walk(at.pass, at.walk).item.map(|item| item.0),
            },
            pinned: self.pinned(at),
            round: self.round,
            attempt: number,
            former,
            params,
            reused: None,
            limits,
            cache_key,
            failed_for_good: None,
            created_at: turn.now,
            state,
        }
    }

    /// Skips all leaves of a walk. Their records are committed together: a walk with a record has begun.
    pub(super) fn skip_walk(&mut self, pass: PassIx, walk: WalkIx, reason: &str, turn: &mut Turn<'_>) {
        let steps = self.plan.entry_of(pass).steps().map(|step| At { pass, walk, step });
        let skipped = steps.filter(|at| !self.is_carried(*at)).map(|at| {
            let state = State::Skipped { reason: reason.to_owned(), at: turn.now };
            self.execution(at, Prepared::first(), state, turn)
        });
        let skipped: Vec<Execution> = skipped.collect();
        self.outbox.add_group(skipped);
        self.passes.mark_skipped(pass);
        self.walk_ended(pass, walk);
    }

    /// Ends a walk. With its last walk the pass ends, and the passes that waited for it become due.
    pub(super) fn walk_ended(&mut self, pass: PassIx, walk: WalkIx) {
        match self.passes.end_walk(pass, walk) {
            Some(EntryEnd::Skipped) => self.passes.end(&self.plan, pass, self.skipped_end(pass)),
            Some(end) => self.passes.end(&self.plan, pass, end),
            None => self.room.freed(pass),
        }
    }

    pub(super) fn pinned(&self, at: At) -> Option<NodeId> {
        let nodes = self.plan.nodes_of_pass(at.pass)?;
        Some(self.plan.node(nodes[at.walk.get()]).id)
    }

    pub(super) fn wave(&self, pass: PassIx) -> Option<u32> {
        self.plan.passes[pass].wave
    }

    pub(super) fn condition(&self, pass: PassIx) -> Option<Condition> {
        self.plan.entry_of(pass).condition
    }

    /// Returns whether a step may still get new attempts.
    pub(super) fn goes_on(&self, step: StepIx) -> bool {
        !self.is_stopped(step) && (self.failures.fail_fast().is_none() || self.plan.runs_on_failure(step))
    }
}
