//! Owns the guards of running work and their deadlines.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use downbeat_backends::{Deadlines, Guard};
use downbeat_proto::message::LeaseRef;
use parking_lot::Mutex;

use crate::shared::Shared;

/// The guards by lease. Only work that must never overlap has one.
#[derive(Debug, Default)]
pub(crate) struct Guards(Mutex<HashMap<LeaseRef, Guard>>);

impl Guards {
    /// Moves the deadlines after leases were renewed.
    pub(crate) fn extend(&self, deadlines: impl Fn(LeaseRef) -> Option<Deadlines>) {
        for (held, guard) in self.0.lock().iter() {
            if let Some(deadlines) = deadlines(*held) {
                guard.extend(deadlines);
            }
        }
    }
}

/// A piece of work and its guard. Dropped before `done`, the guard ends the work.
pub(crate) struct Guarded {
    shared: Arc<Shared>,
    held: LeaseRef,
    pub(crate) guard: Guard,
}

impl Guarded {
    /// Returns `None` on a host without guards.
    pub(crate) fn new(shared: &Arc<Shared>, held: LeaseRef) -> Option<Self> {
        let guard = shared.deadlines(held).and_then(|deadlines| shared.host.guard(deadlines));
        let Some(guard) = guard else {
            tracing::debug!(execution = %held.execution, "no guard: only a running agent can end this work early");
            return None;
        };
        shared.guards.0.lock().insert(held, guard.clone());
        Some(Self { shared: shared.clone(), held, guard })
    }

    pub(crate) fn done(self) {
        self.guard.done();
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.shared.guards.0.lock().remove(&self.held);
    }
}

/// Returns when a guard acts on a lease that was renewed at `assured` and lasts for `lease_ttl`. The agent itself ends
/// the work after `term`: the guard leaves it a quarter of the rest for that, and is done a quarter before the lease
/// ends.
pub(crate) fn deadlines(assured: Duration, lease_ttl: Duration, term: Duration) -> Deadlines {
    let quarter = lease_ttl.saturating_sub(term) / 4;
    Deadlines { end: assured + term + quarter, kill: assured + lease_ttl.saturating_sub(quarter) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_acts_after_the_agent_and_before_the_lease_ends() {
        let (ttl, term) = (Duration::from_secs(30), Duration::from_secs(25));
        let Deadlines { end, kill } = deadlines(Duration::from_secs(100), ttl, term);
        assert_eq!((end, kill), (Duration::from_millis(126_250), Duration::from_millis(128_750)));
    }
}
