//! Owns the taking of work: exactly one poll is under way at any time, also when nothing is free, so that orders to
//! stop arrive at once.

use std::sync::Arc;
use std::time::Duration;

use downbeat_proto::message::{Fault, Poll};

use crate::error::Error;
use crate::links::Lent;
use crate::shared::Shared;

/// After an answer without work or orders: a server that does not park polls is not asked in a tight loop.
const PAUSE_AFTER_NOTHING: Duration = Duration::from_millis(20);
/// An agent that is told to stop asks once more what is on its way to it. So long, for what is being committed.
const LAST_LOOK: Duration = Duration::from_millis(200);

/// Polls for as long as the session lives.
pub(crate) async fn poll(shared: Arc<Shared>) -> Error {
    let mut resync = false;
    let mut last: Option<Lent> = None;
    loop {
        let link = shared.links.lend().await;
        // Another server may not have heard what the one before was about to hand over.
        resync |= last.replace(link.clone()).is_some_and(|last| !last.is(&link));
        let is_last_look;
        let request = {
            let mut holdings = shared.holdings();
            let (poll, free) = holdings.begin_poll();
            is_last_look = resync && holdings.is_draining();
            Poll {
                node: shared.node,
                session: shared.session,
                free,
                poll,
                resync: resync.then(|| holdings.held()),
                wait: if is_last_look { LAST_LOOK } else { shared.tuning.poll_wait },
            }
        };
        let answer = tokio::select! {
            biased;
            answer = link.poll(request) => answer,
            () = shared.ask_anew.notified() => {
                resync = true;
                continue;
            }
            // Calls that are answered at once find a dead server long before a parked one does: a node that renews its
            // leases elsewhere asks for work there, too.
            () = shared.links.given_up(&link) => Err(Fault::Unavailable("another call found it dead".to_owned())),
        };
        shared.links.settle(&link, &answer).await;
        // An answer may have been lost with the error: the next poll says what arrived.
        resync = answer.is_err();
        match answer {
            Ok(answer) => {
                let nothing = answer.assignments.is_empty() && answer.stop.is_empty();
                shared.assign(answer.assignments);
                shared.stop(&answer.stop);
                if is_last_look {
                    shared.looked_last();
                }
                if nothing {
                    tokio::time::sleep(PAUSE_AFTER_NOTHING).await;
                }
            }
            Err(Fault::Unavailable(_) | Fault::TimedOut(_)) => {}
            Err(fault) => shared.doubted("poll", &fault).await,
        }
    }
}
