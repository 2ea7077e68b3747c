//! Owns the end of a session: the tasks of a crashed host still exist in the runtime, but nothing they do has an effect
//! outside. A call of `pass` never returns, or only later if the host is suspended.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// One session of a host, seen from outside. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    closed: CancellationToken,
    /// Until when the host is suspended, if it is.
    suspended: Arc<Mutex<Option<Instant>>>,
}

impl Gate {
    /// Blocks everything from now on.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Suspends the host until then.
    pub(crate) fn suspend(&self, until: Instant) {
        *self.suspended.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    fn suspended(&self) -> Option<Instant> {
        let until = *self.suspended.lock().unwrap_or_else(PoisonError::into_inner);
        until.filter(|until| *until > Instant::now())
    }

    /// Returns at once while the host is up, and never afterwards. Waits while it is suspended.
    pub(crate) async fn pass(&self) {
        while let Some(until) = self.suspended() {
            tokio::time::sleep_until(until).await;
        }
        if self.is_closed() {
            std::future::pending::<()>().await;
        }
    }

    /// Runs a future; returns `None` if the host crashes first.
    pub(crate) async fn run<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.closed() => None,
            done = future => Some(done),
        }
    }

    /// Waits until the host has crashed.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }
}
