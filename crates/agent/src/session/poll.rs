//! Owns the polling for work: exactly one poll is pending at any time, even without free slots, so that cancellations
//! arrive at once.

use std::sync::Arc;
use std::time::Duration;

use downbeat_proto::message::{Fault, Poll};

use crate::error::Error;
use crate::links::CallLink;
use crate::shared::Shared;

/// After an empty response: a server that does not hold polls must not be asked in a tight loop.
const PAUSE_AFTER_NOTHING: Duration = Duration::from_millis(20);
/// How long the last poll of an agent that stops waits, for assignments that are being committed.
const LAST_LOOK: Duration = Duration::from_millis(200);

/// Polls until the session ends.
pub(crate) async fn poll(shared: Arc<Shared>) -> Error {
    let mut resync = false;
    let mut last: Option<CallLink> = None;
    loop {
        let link = shared.links.control_link().await;
        // Another server may not know the assignments that the previous one was about to send.
        resync |= last.replace(link.clone()).is_some_and(|last| !last.is(&link));
        let is_last_look;
        let request = {
            let mut holdings = shared.holdings.lock();
            let (poll, free) = holdings.begin_poll();
            is_last_look = resync && holdings.draining;
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
            () = shared.poll_again.notified() => {
                resync = true;
                continue;
            }
            // Short calls detect a dead server long before a held poll does: a node that renews its leases at another
            // server has to poll there, too.
            () = shared.links.given_up(&link) => Err(Fault::Unavailable("another call found the link broken".to_owned())),
        };
        shared.links.note_result(&link, &answer).await;
        // A response may have been lost with the error: the next poll lists the leases that arrived.
        resync = answer.is_err();
        match answer {
            Ok(answer) => {
                let nothing = answer.assignments.is_empty() && answer.stop.is_empty();
                shared.assign(answer.assignments);
                shared.stop(&answer.stop);
                if is_last_look {
                    shared.last_poll_done();
                }
                if nothing {
                    tokio::time::sleep(PAUSE_AFTER_NOTHING).await;
                }
            }
            Err(Fault::Unavailable(_) | Fault::TimedOut(_)) => {}
            Err(fault) => shared.recheck_session("poll", &fault).await,
        }
    }
}
