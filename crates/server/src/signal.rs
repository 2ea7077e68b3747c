//! Waits for signals that may be lost.

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

/// Returns the next message, or `None` if messages were missed. Waits forever when the sender is gone.
pub(crate) async fn heard<T: Clone>(receiver: &mut Receiver<T>) -> Option<T> {
    match receiver.recv().await {
        Ok(message) => Some(message),
        Err(RecvError::Lagged(_)) => None,
        Err(RecvError::Closed) => std::future::pending().await,
    }
}
