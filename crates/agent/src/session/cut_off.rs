//! Owns the agent's own end of a lease: work that must never overlap ends when it could not be renewed for a term.

use std::sync::Arc;

use tokio::time::Instant;

use crate::error::Error;
use crate::shared::Shared;
use crate::stop::Reason;

/// Watches for as long as the session lives.
pub(crate) async fn cut_off(shared: Arc<Shared>) -> Error {
    let reason = Reason::CutOff(shared.term());
    loop {
        let renewed = shared.renewed.notified();
        let next = shared.holdings().cut_off(shared.term(), Instant::now(), reason);
        match next {
            // A renewal puts it off; looking in vain costs nothing.
            Some(due) => tokio::select! {
                biased;
                () = tokio::time::sleep_until(due) => {}
                () = renewed => {}
            },
            None => renewed.await,
        }
    }
}
