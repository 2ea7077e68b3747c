//! Owns since when this server has been able to take heartbeats without a break: silence before does not count.

use std::sync::{Arc, Mutex, PoisonError};

use downbeat_core::Timestamp;

/// Cheap to clone; the sweeper keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Serving(Arc<Mutex<Timestamp>>);

impl Serving {
    pub(crate) fn new(since: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(since)))
    }

    pub(crate) fn since(&self) -> Timestamp {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There was a break until then.
    pub(crate) fn begin(&self, since: Timestamp) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}
