//! Shows the limits that open executions share: who uses them, and who waits.

use std::collections::BTreeMap;

use downbeat_api::{LimitUsage, LimitUser};
use downbeat_core::Timestamp;
use downbeat_core::ids::{ClusterId, ExecutionId};
use downbeat_core::work::{Origin, Parent};

use super::board::{Board, DispatchState};
use super::uses::{Bound, LimitKind};

/// How many users and how many waiters of a limit are named.
const NAMED: usize = 20;

/// What the board knows about one limit.
struct Usage<'a> {
    /// The strictest bound that an open execution declares.
    bound: &'a Bound,
    waiting: usize,
    waiters: Vec<ExecutionId>,
}

impl Board {
    /// Returns a part of the cluster's limits, by key, and how many there are.
    pub(crate) fn limit_usage(
        &self,
        cluster: ClusterId,
        (first, most): (usize, usize),
        now: Timestamp,
    ) -> (Vec<LimitUsage>, usize) {
        let mut found: BTreeMap<(&str, LimitKind), Usage<'_>> = BTreeMap::new();
        for pile in self.queue.piles() {
            for bound in pile.bounds.iter().filter(|bound| bound.key.cluster == cluster) {
                let new = || Usage { bound, waiting: 0, waiters: Vec::new() };
                let usage = found.entry((&bound.key.name, bound.key.kind)).or_insert_with(new);
                if bound.most() < usage.bound.most() {
                    usage.bound = bound;
                }
                usage.waiting += pile.len();
                let room = NAMED - usage.waiters.len();
                usage.waiters.extend(pile.executions().take(room));
            }
        }
        let row = |Usage { bound, waiting, waiters }: &Usage<'_>| LimitUsage {
            key: bound.key.name.to_string(),
            most: bound.most(),
            per: (bound.key.kind == LimitKind::Rate).then_some(bound.per),
            in_use: self.uses.count(&bound.key, now) as u64,
            holders: self.uses.users(&bound.key).filter_map(|id| self.limit_user(id)).take(NAMED).collect(),
            waiting: *waiting as u64,
            waiters: waiters.iter().filter_map(|id| self.limit_user(*id)).collect(),
        };
        (found.values().skip(first).take(most).map(row).collect(), found.len())
    }

    fn limit_user(&self, id: ExecutionId) -> Option<LimitUser> {
        let open = self.open.get(&id)?;
        let Parent::Run(run) = &open.parent;
        let Origin::Step { step, item, .. } = &open.attempt.of;
        let node = match open.stage {
            DispatchState::Claimed { node, .. } | DispatchState::Leased { node } => Some(node),
            DispatchState::Waiting { .. } | DispatchState::Paused { .. } => self.queue.pinned_to(open.slot),
        };
        let node = node.and_then(|node| self.node(node)).map(|node| node.description.hostname.clone());
        Some(LimitUser { execution: id, run: run.clone(), step: *step, item: *item, node })
    }
}
