//! Owns the end of a session: the tasks of a crashed host still exist in the runtime, but nothing they do has an effect
//! outside. A call of `pass` never returns.

use tokio_util::sync::CancellationToken;

/// One session of a host, seen from outside. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    closed: CancellationToken,
}

impl Gate {
    /// Blocks everything from now on.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Returns at once while the host is up, and never afterwards.
    pub(crate) async fn pass(&self) {
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
