//! Shows the limits that open executions share: who uses them, and who waits.

use std::collections::BTreeMap;
use std::ops;

use downbeat_api::{LimitUsage, LimitUser};
use downbeat_core::Timestamp;
use downbeat_core::ids::{ClusterId, ExecutionId};
use downbeat_core::work::{Origin, Parent};
use downbeat_store::{Listed, Page, Position};
use serde::{Deserialize, Serialize};

use super::board::{Board, DispatchState};
use super::uses::{Bound, LimitKind};

/// How many users and how many waiters of a limit are named.
const NAMED: usize = 20;

/// A limit, as lists of limits are ordered: by its key, then numbers at once before rates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct LimitKey {
    key: String,
    is_rate: bool,
}

impl LimitKey {
    fn of(bound: &Bound) -> Self {
        Self { key: bound.key.name.to_string(), is_rate: bound.key.kind == LimitKind::Rate }
    }
}

/// What the board knows about one limit.
struct Usage<'a> {
    /// The strictest bound that an open execution declares.
    bound: &'a Bound,
    waiting: usize,
    waiters: Vec<ExecutionId>,
}

impl Board {
    /// Returns a page of the cluster's limits.
    pub(crate) fn limit_usage(
        &self,
        cluster: ClusterId,
        page: &Page<LimitKey>,
        now: Timestamp,
    ) -> Listed<LimitUsage, LimitKey> {
        let mut found: BTreeMap<LimitKey, Usage<'_>> = BTreeMap::new();
        for pile in self.queue.piles() {
            for bound in pile.bounds.iter().filter(|bound| bound.key.cluster == cluster) {
                let new = || Usage { bound, waiting: 0, waiters: Vec::new() };
                let usage = found.entry(LimitKey::of(bound)).or_insert_with(new);
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
        let total = page.start.after.is_none().then_some(found.len() as u64);
        let after = page.start.after.as_ref().map_or(ops::Bound::Unbounded, ops::Bound::Excluded);
        let skip = usize::try_from(page.start.skip).unwrap_or(usize::MAX);
        let mut rest = found.range((after, ops::Bound::Unbounded)).skip(skip);
        let (mut rows, mut last) = (Vec::new(), None);
        for (key, usage) in rest.by_ref().take(page.limit as usize) {
            rows.push(row(usage));
            last = Some(key);
        }
        let next = rest.next().and(last).map(|key| Position::after(key.clone()));
        Listed { rows, total, next }
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
