//! Counts the slots of limits in use, as executions are claimed, leased and ended.

use downbeat_core::execution::Lease;
use downbeat_core::ids::ExecutionId;
use downbeat_core::state::LimitUse;
use downbeat_core::{Change, Timestamp};

use super::board::{Board, DispatchState};
use super::queue::QueueSlot;
use super::uses::{Key, LimitKind};

impl Board {
    /// Loads the uses that the store knows when a server starts: current leases, and recent leases that count for a
    /// rate. Call it after the executions are loaded: an open execution frees its slot when it ends.
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

    /// Counts an execution that is leased at `at`.
    pub(super) fn use_limits_at(&mut self, slot: QueueSlot, execution: ExecutionId, at: Timestamp) {
        for bound in self.queue.bounds(slot).iter().flat_map(|bounds| bounds.iter()) {
            self.uses.take(bound, execution, at);
        }
    }

    /// Counts a committed lease, claimed by this server or by another one.
    pub(super) fn use_limits(&mut self, execution: ExecutionId, lease: &Lease) {
        let Some(open) = self.open.get(&execution) else { return };
        let Some(bounds) = self.queue.bounds(open.slot) else { return };
        for bound in bounds.iter() {
            if let DispatchState::Claimed { at, .. } = open.stage
                && at != lease.granted_at
            {
                self.uses.forget_begin(bound, execution, at);
            }
            self.uses.take(bound, execution, lease.granted_at);
            self.uses.end_rest(&bound.key);
        }
    }

    pub(super) fn end_limit_uses(&mut self, slot: QueueSlot, execution: ExecutionId) {
        for bound in self.queue.bounds(slot).iter().flat_map(|bounds| bounds.iter()) {
            self.uses.end_rest(&bound.key);
            if self.uses.end(bound, execution) {
                self.queue.wake(&bound.key);
            }
        }
    }

    /// Stops counting a lease that was not granted after all.
    pub(super) fn release_slots(&mut self, slot: QueueSlot, execution: ExecutionId, at: Timestamp) {
        for bound in self.queue.bounds(slot).iter().flat_map(|bounds| bounds.iter()) {
            if self.uses.give_back(bound, execution, at) {
                self.queue.wake(&bound.key);
            }
        }
    }

    /// Lets a limit rest: the store refused a claim because the limit is full, whatever the board has counted.
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
