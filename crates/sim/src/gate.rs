//! Owns the end of an incarnation: a host that crashed goes on as tasks of the one runtime, but nothing that it does
//! gets out any more. Whatever asks to pass waits for ever.

use tokio_util::sync::CancellationToken;

/// One life of a host, as everything around it sees it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    closed: CancellationToken,
}

impl Gate {
    /// From here on nothing gets out.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Returns at once while the host lives, never afterwards.
    pub(crate) async fn pass(&self) {
        if self.is_closed() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns when the host is dead.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }
}
