//! Owns results that a server rejects. A result is never dropped, since its run would wait forever. The agent
//! first drops its output, then keeps the result and retries it alone, so that it does not delay other
//! results.

use std::collections::VecDeque;
use std::time::Duration;

use downbeat_core::limits::REASON_BYTES;
use downbeat_proto::message::{Fault, Finished, Receipt, Report};
use tokio::time::Instant;

use crate::output::cost_bytes;
use crate::shared::Shared;

/// The longest pause between retries: long enough to be cheap, short enough that a repaired server soon has
/// the result.
const PAUSE_MOST: Duration = Duration::from_secs(60);

/// Results that no server has accepted so far.
#[derive(Debug)]
pub(super) struct Stuck {
    results: VecDeque<Finished>,
    due: Instant,
    pause: Duration,
}

impl Stuck {
    pub(super) fn new(pause: Duration) -> Self {
        Self { results: VecDeque::new(), due: Instant::now() + pause, pause }
    }

    pub(super) fn keep(&mut self, finished: Finished) {
        if self.results.is_empty() {
            self.due = Instant::now() + self.pause;
        }
        self.results.push_back(finished);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    pub(super) fn is_due(&self) -> bool {
        !self.is_empty() && self.due <= Instant::now()
    }

    pub(super) async fn send(&mut self, shared: &Shared) {
        let Some(finished) = self.results.front().cloned() else { return };
        let held = finished.held;
        let link = shared.links.control_link().await;
        let (poll, free) = shared.holdings.lock().offer();
        let (node, session) = (shared.node, shared.session);
        let (started, finished, takes_work) = (Vec::new(), vec![finished], false);
        let report = Report { node, session, started, finished, free, poll, takes_work };
        let answer = link.report(report).await;
        shared.links.note_result(&link, &answer).await;
        match answer {
            Ok(answer) if answer.receipts.len() == 1 => {
                self.results.pop_front();
                self.pause = shared.tuning.backoff_most;
                self.due = Instant::now();
                if answer.receipts[0] == Receipt::Recorded {
                    tracing::info!(%node, execution = %held.execution, "a result that was rejected before is accepted now");
                    shared.recorded(vec![held]);
                } else {
                    shared.refused(vec![held]);
                }
            }
            // The pause is in connecting to the next server.
            Err(Fault::Unavailable(_) | Fault::TimedOut(_)) => {}
            Err(Fault::Rejected(why)) if !self.results[0].output.is_empty() => {
                shared.sent(held, drop_output(&mut self.results[0], &why));
            }
            Ok(_) | Err(_) => {
                self.results.rotate_left(1);
                self.due = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(PAUSE_MOST);
            }
        }
    }
}

/// Removes output that was rejected from its result, and adds the reason to it. Returns about how many bytes
/// were dropped.
pub(super) fn drop_output(finished: &mut Finished, why: &str) -> usize {
    let dropped = std::mem::take(&mut finished.output);
    let Some(first) = dropped.first() else { return 0 };
    let (run, execution) = (&finished.of, finished.held.execution);
    tracing::error!(%run, %execution, why, "output was rejected; sending the result without it");
    // Output before this offset has arrived.
    let what = if first.offset == 0 { "its output" } else { "the rest of its output" };
    let mut note = format!("{what} was dropped because the server rejected it: {why}");
    note.truncate(note.floor_char_boundary(REASON_BYTES / 2));
    let error = finished.outcome.error.take();
    finished.outcome.error = Some(match error {
        Some(mut error) => {
            error.truncate(error.floor_char_boundary(REASON_BYTES - note.len() - 2));
            format!("{error}; {note}")
        }
        None => note,
    });
    cost_bytes(&dropped)
}
