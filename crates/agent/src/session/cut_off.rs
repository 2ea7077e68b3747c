//! Owns the expiry of leases on the agent's side: work that must never overlap ends if its lease was not renewed for a
//! term.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::shared::Shared;
use crate::stop::Reason;

/// Timers stop while the machine is suspended, leases do not, so the clock is checked this often.
const LOOK: Duration = Duration::from_secs(1);

/// Watches until the session ends.
pub(crate) async fn cut_off(shared: Arc<Shared>) -> Error {
    let reason = Reason::CutOff(shared.term());
    loop {
        let renewed = shared.renewed.notified();
        let now = shared.clock.now();
        let next = shared.holdings.lock().cut_off(shared.term(), now, reason);
        match next {
            // A renewal moves the deadline; an unneeded check costs nothing.
            Some(due) => tokio::select! {
                biased;
                () = tokio::time::sleep(due.saturating_duration_since(now).min(LOOK)) => {}
                () = renewed => {}
            },
            None => renewed.await,
        }
    }
}
