//! Keeps count of the places of limits, as executions are claimed, leased and ended.

use downbeat_core::Change;
use downbeat_core::Timestamp;
use downbeat_core::execution::Lease;
use downbeat_core::ids::ExecutionId;
use downbeat_core::state::LimitUse;

use super::board::{Board, Stage};
use super::queue::QueueSlot;
use super::uses::{Key, LimitKind};

impl Board {
    /// What the store remembers, when a server starts: what is leased now, and what was given out lately. After the
    /// executions: what is open gives its place back with its execution.
    pub(crate) fn load_uses(&mut self, uses: impl IntoIterator<Item = LimitUse>) {
        for LimitUse { cluster, key, execution, granted_at, until } in uses {
            let name = key.into();
            match until {
                Some(until) => {
                    let key = Key { cluster, kind: LimitKind::Rate, name };
                    self.uses.begin(key, execution, granted_at, until);
                }
                None if self.open.contains_key(&execution) => {
                    self.uses.occupy(Key { cluster, kind: LimitKind::AtOnce, name }, execution);
                }
                None => {}
            }
        }
    }

    /// It is given out at this time.
    pub(super) fn take_places_at(&mut self, slot: QueueSlot, execution: ExecutionId, at: Timestamp) {
        for bound in self.queue.bounds(slot).iter().flat_map(|bounds| bounds.iter()) {
            self.uses.take(bound, execution, at);
        }
    }

    /// A lease was committed: this server's claim, or another's.
    pub(super) fn take_places(&mut self, execution: ExecutionId, lease: &Lease) {
        let Some(open) = self.open.get(&execution) else { return };
        let Some(bounds) = self.queue.bounds(open.slot) else { return };
        for bound in bounds.iter() {
            if let Stage::Claimed { at, .. } = open.stage
                && at != lease.granted_at
            {
                self.uses.forget_begin(bound, execution, at);
            }
            self.uses.take(bound, execution, lease.granted_at);
            self.uses.hear(&bound.key);
        }
    }

    pub(super) fn end_places(&mut self, slot: QueueSlot, execution: ExecutionId) {
        for bound in self.queue.bounds(slot).iter().flat_map(|bounds| bounds.iter()) {
            self.uses.hear(&bound.key);
            if self.uses.end(bound, execution) {
                self.queue.wake(&bound.key);
            }
        }
    }

    /// The lease of this time was not given after all.
    pub(super) fn give_places_back(&mut self, slot: QueueSlot, execution: ExecutionId, at: Timestamp) {
        for bound in self.queue.bounds(slot).iter().flat_map(|bounds| bounds.iter()) {
            if self.uses.give_back(bound, execution, at) {
                self.queue.wake(&bound.key);
            }
        }
    }

    /// The store refused a claim for this key: it has no room, whatever the board thinks, and is left alone for a moment.
    pub(crate) fn rest(&mut self, claim: &Change, name: &str, now: Timestamp) {
        let Change::ExecutionLeased { execution, .. } = claim else { return };
        let Some(open) = self.open.get(execution) else { return };
        for bound in self.queue.bounds(open.slot).iter().flat_map(|bounds| bounds.iter()) {
            if &*bound.key.name == name {
                self.uses.rest(&bound.key, now);
            }
        }
    }
}
