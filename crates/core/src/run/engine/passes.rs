//! Owns how far each pass is, and which passes are due.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use crate::plan::{ItemIx, NodeIx, PassIx, Plan, StepIx, WalkIx, indexed_by};

/// A step of one walk of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub pass: PassIx,
    pub walk: WalkIx,
    pub step: StepIx,
}

/// How an entry ended; entries that depend on it need to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryEnd {
    Succeeded,
    Failed,
    /// Not needed: it would not have run without failures either.
    Skipped,
    /// Something before it failed, or fail-fast or the run's timeout kept it from running.
    SkippedAfterFailure,
}

impl EntryEnd {
    /// Returns whether `on_failure` entries that depend on it run.
    pub(super) fn is_failure(self) -> bool {
        matches!(self, EntryEnd::Failed | EntryEnd::SkippedAfterFailure)
    }
}

/// The stage of a pass. A waiting one waits for `missing` other passes.
#[derive(Clone, Debug)]
enum Stage {
    Waiting { missing: u32 },
    Open(OpenPass),
    Ended(EntryEnd),
}

/// A pass that has begun and not ended.
#[derive(Clone, Debug)]
pub(super) struct OpenPass {
    walks: Vec<Walk>,
    /// The items of the walks, if the entry has `for_each`.
    pub items: Option<Arc<[Value]>>,
    /// The number of walks that have not ended.
    open: u32,
    /// The number of walks that have begun and not ended.
    begun: u32,
    /// A walk has begun.
    tried: bool,
    failed: bool,
    /// A leaf had an attempt.
    ran: bool,
    /// A leaf was carried over.
    reused: bool,
    /// A leaf was skipped.
    skipped: bool,
    /// The walks that wait for room, in order.
    pub line: VecDeque<WalkIx>,
}

impl OpenPass {
    pub(super) fn new(walks: Vec<Walk>, items: Option<Arc<[Value]>>) -> Self {
        let open = u32::try_from(walks.len()).expect("plans are bounded");
        let (tried, failed, ran, reused, skipped) = (false, false, false, false, false);
        Self { walks, items, open, begun: 0, tried, failed, ran, reused, skipped, line: VecDeque::new() }
    }

    pub(super) fn begun(&self) -> u32 {
        self.begun
    }
}

/// One sequence through an entry's leaves: for a node, for an item, or the only one of a placed entry.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    pub node: Option<NodeIx>,
    pub item: Option<ItemIx>,
    /// The position of the next leaf inside the entry.
    pub position: u32,
    pub attempt: u32,
    pub retries: u32,
    pub losses: u32,
    pub failed: bool,
    /// Whether any of its leaves has had an attempt, or room was reserved for one.
    pub begun: bool,
}

impl Walk {
    pub(super) fn new(node: Option<NodeIx>, item: Option<ItemIx>) -> Self {
        Self { node, item, position: 0, attempt: 0, retries: 0, losses: 0, failed: false, begun: false }
    }
}

indexed_by!(PassIx: Stage, WalkIx: Walk);

#[derive(Clone, Debug)]
pub(super) struct Passes {
    stages: Vec<Stage>,
    /// Passes that have not ended.
    remaining: usize,
    /// Passes to decide. The first in the job file is decided first, so that the order in which simultaneous facts
    /// arrive makes no difference.
    due: BTreeSet<PassIx>,
}

impl Passes {
    pub(super) fn new(plan: &Plan) -> Self {
        let missing = |after: &Vec<_>| u32::try_from(after.len()).expect("plans are bounded");
        let waiting = plan.passes.iter().map(|pass| Stage::Waiting { missing: missing(&pass.after) });
        Self { stages: waiting.collect(), remaining: plan.passes.len(), due: BTreeSet::new() }
    }

    pub(super) fn all_ended(&self) -> bool {
        self.remaining == 0
    }

    /// Makes the passes due that depend on no other pass.
    pub(super) fn begin(&mut self) {
        let stages = (0..).map(PassIx).zip(&self.stages);
        let roots = stages.filter(|(_, stage)| matches!(stage, Stage::Waiting { missing: 0 }));
        self.due = roots.map(|(pass, _)| pass).collect();
    }

    pub(super) fn add_due(&mut self, passes: impl IntoIterator<Item = PassIx>) {
        self.due.extend(passes);
    }

    pub(super) fn next_due(&mut self) -> Option<PassIx> {
        self.due.pop_first()
    }

    pub(super) fn due(&self) -> impl Iterator<Item = PassIx> {
        self.due.iter().copied()
    }

    pub(super) fn remove_due(&mut self, pass: PassIx) {
        self.due.remove(&pass);
    }

    /// Opens a pass and returns its walks.
    pub(super) fn open(&mut self, pass: PassIx, open: OpenPass) -> Range<u32> {
        let walks = 0..open.open;
        self.stages[pass] = Stage::Open(open);
        walks
    }

    pub(super) fn get(&self, pass: PassIx) -> Option<&OpenPass> {
        if let Stage::Open(open) = &self.stages[pass] { Some(open) } else { None }
    }

    pub(super) fn get_mut(&mut self, pass: PassIx) -> Option<&mut OpenPass> {
        if let Stage::Open(open) = &mut self.stages[pass] { Some(open) } else { None }
    }

    pub(super) fn walk(&self, pass: PassIx, walk: WalkIx) -> &Walk {
        &self.get(pass).expect("only open passes are walked").walks[walk]
    }

    pub(super) fn walk_mut(&mut self, pass: PassIx, walk: WalkIx) -> &mut Walk {
        &mut self.get_mut(pass).expect("only open passes are walked").walks[walk]
    }

    /// Returns whether an open pass has begun in this run. Results of another run do not show it.
    pub(super) fn has_begun(&self, pass: PassIx) -> bool {
        self.get(pass).is_some_and(|open| open.ran || open.tried)
    }

    /// Returns whether a walk of an open pass has had an attempt in this run.
    pub(super) fn has_attempts(&self, pass: PassIx) -> bool {
        self.get(pass).is_some_and(|open| open.tried)
    }

    pub(super) fn mark_ran(&mut self, pass: PassIx) {
        if let Some(open) = self.get_mut(pass) {
            open.ran = true;
        }
    }

    pub(super) fn mark_reused(&mut self, pass: PassIx) {
        if let Some(open) = self.get_mut(pass) {
            open.reused = true;
        }
    }

    pub(super) fn mark_skipped(&mut self, pass: PassIx) {
        if let Some(open) = self.get_mut(pass) {
            open.skipped = true;
        }
    }

    pub(super) fn mark_begun(&mut self, pass: PassIx, walk: WalkIx) {
        if let Some(open) = self.get_mut(pass)
            && !std::mem::replace(&mut open.walks[walk].begun, true)
        {
            open.begun += 1;
            open.tried = true;
        }
    }

    /// Marks a walk and its pass as failed, and returns the walk's node.
    pub(super) fn mark_failed(&mut self, pass: PassIx, walk: WalkIx) -> Option<NodeIx> {
        let open = self.get_mut(pass).expect("only open passes are walked");
        open.failed = true;
        open.ran = true;
        let walk = &mut open.walks[walk];
        walk.failed = true;
        walk.node
    }

    /// Moves a walk to its next leaf.
    pub(super) fn next_leaf(&mut self, pass: PassIx, walk: WalkIx) {
        let walk = self.walk_mut(pass, walk);
        walk.position += 1;
        (walk.attempt, walk.retries, walk.losses) = (0, 0, 0);
    }

    /// Ends a walk. If it was the last one of its pass, returns how the pass ended. Leaves that were carried over make no
    /// difference if others were skipped: the records do not show whether the pass began.
    pub(super) fn end_walk(&mut self, pass: PassIx, walk: WalkIx) -> Option<EntryEnd> {
        let open = self.get_mut(pass)?;
        open.open -= 1;
        open.begun -= u32::from(open.walks[walk].begun);
        (open.open == 0).then_some(match (open.failed, open.ran, open.skipped) {
            (true, _, _) => EntryEnd::Failed,
            (false, true, _) | (false, false, false) => EntryEnd::Succeeded,
            (false, false, true) => EntryEnd::Skipped,
        })
    }

    /// Ends a pass. Passes that waited only for this one become due.
    pub(super) fn end(&mut self, plan: &Plan, pass: PassIx, end: EntryEnd) {
        self.stages[pass] = Stage::Ended(end);
        self.remaining -= 1;
        for &next in &plan.passes[pass].before {
            if let Stage::Waiting { missing } = &mut self.stages[next] {
                *missing -= 1;
                if *missing == 0 {
                    self.due.insert(next);
                }
            }
        }
    }

    /// Returns how a pass ended. It must have ended: another pass waited for it.
    pub(super) fn end_of(&self, pass: PassIx) -> EntryEnd {
        match self.stages[pass] {
            Stage::Ended(end) => end,
            _ => unreachable!("a pass is decided when all that it waits for has ended"),
        }
    }
}
