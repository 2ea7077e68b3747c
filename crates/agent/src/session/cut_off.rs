//! Owns the agent's own end of a lease: work that must never overlap ends when it could not be renewed for a term.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::shared::Shared;
use crate::stop::Reason;

/// Timers stand still while the machine is suspended, leases do not: the clock is looked at this often.
const LOOK: Duration = Duration::from_secs(1);

/// Watches for as long as the session lives.
pub(crate) async fn cut_off(shared: Arc<Shared>) -> Error {
    let reason = Reason::CutOff(shared.term());
    loop {
        let renewed = shared.renewed.notified();
        let now = shared.clock.now();
        let next = shared.holdings().cut_off(shared.term(), now, reason);
        match next {
            // A renewal puts it off; looking in vain costs nothing.
            Some(due) => tokio::select! {
                biased;
                () = tokio::time::sleep(due.saturating_duration_since(now).min(LOOK)) => {}
                () = renewed => {}
            },
            None => renewed.await,
        }
    }
}
