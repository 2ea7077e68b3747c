//! Owns the agent's own end of a lease: work that must never overlap ends when it could not be renewed for a term.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::shared::Shared;
use crate::stop::Reason;

/// While cut off, work whose turn comes late is ended too.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Watches for as long as the session lives.
pub(crate) async fn cut_off(shared: Arc<Shared>) -> Error {
    loop {
        let due = *shared.renewed.borrow() + shared.lease_ttl;
        if Instant::now() < due {
            tokio::time::sleep_until(due).await;
            continue;
        }
        shared.holdings().cut_off(Reason::CutOff(shared.lease_ttl));
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
