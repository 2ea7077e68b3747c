//! Shows the limits that open executions share: who uses them, and who waits.

use std::collections::BTreeMap;

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

    fn order(&self) -> (&str, bool) {
        (&self.key, self.is_rate)
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
    /// Returns a page of the cluster's limits. It holds only the limits up to the end of the page: the dispatcher waits
    /// meanwhile.
    pub(crate) fn limit_usage(
        &self,
        cluster: ClusterId,
        page: &Page<LimitKey>,
        now: Timestamp,
    ) -> Listed<LimitUsage, LimitKey> {
        let after = page.start.after.as_ref().map(LimitKey::order);
        let (limit, skip) = (page.limit as usize, usize::try_from(page.start.skip).unwrap_or(usize::MAX));
        let most = skip.saturating_add(limit);
        let mut found: BTreeMap<(&str, bool), Usage<'_>> = BTreeMap::new();
        let mut has_more = false;
        for pile in self.queue.piles() {
            for bound in pile.bounds.iter().filter(|bound| bound.key.cluster == cluster) {
                let key = (&*bound.key.name, bound.key.kind == LimitKind::Rate);
                if after.is_some_and(|after| key <= after) {
                    continue;
                }
                if found.len() == most && found.last_key_value().is_none_or(|(last, _)| key > *last) {
                    has_more = true;
                    continue;
                }
                let new = || Usage { bound, waiting: 0, waiters: Vec::new() };
                let usage = found.entry(key).or_insert_with(new);
                if bound.most() < usage.bound.most() {
                    usage.bound = bound;
                }
                usage.waiting += pile.len();
                let room = NAMED - usage.waiters.len();
                usage.waiters.extend(pile.executions().take(room));
                if found.len() > most {
                    found.pop_last();
                    has_more = true;
                }
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
        let total = (after.is_none() && !has_more).then_some(found.len() as u64);
        let last = found.values().last().filter(|_| has_more);
        let next = last.map(|last| Position::after(LimitKey::of(last.bound)));
        let rows = found.values().skip(skip).map(row).collect();
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
