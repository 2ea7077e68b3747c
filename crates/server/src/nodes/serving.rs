//! Owns since when this server has received heartbeats without a break: earlier silence does not count.

use std::sync::{Arc, Mutex, PoisonError};

use downbeat_core::Timestamp;

/// A shared time that the sweeper sets; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Serving(Arc<Mutex<Timestamp>>);

impl Serving {
    pub(crate) fn new(since: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(since)))
    }

    pub(crate) fn since(&self) -> Timestamp {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restarts the time after a break.
    pub(crate) fn begin(&self, since: Timestamp) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}
