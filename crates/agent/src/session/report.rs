//! Owns the reporting of starts and results: batches of all that queued up, each sent until a server responds.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use downbeat_core::backend::params_bytes;
use downbeat_proto::message::{Fault, Finished, LeaseRef, Receipt, Report, Started};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use super::stuck::{Stuck, drop_output};
use crate::error::Error;
use crate::output::cost_bytes;
use crate::output::pace::Pace;
use crate::shared::Shared;

/// Facts in one report.
pub(super) const BATCH: usize = 1024;
/// A result with more output than this is reported without it: the output is sent ahead, over the bulk link.
const LARGE_BYTES: usize = 64 * 1024;
/// The size of a result without its output, error, values and run.
const RESULT_BYTES: usize = 128;
const STARTED_BYTES: usize = 64;
/// A report may overtake the poll that it names, and its offer of slots is then lost. This long after the last one the
/// offer is repeated.
const OFFER_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) enum Outgoing {
    Started(Started),
    /// Written to disk, or impossible to write.
    Finished(Finished),
    /// The number of free slots changed although no work ended.
    Offer,
}

/// Returns how many of these results fit into one report of at most `most` facts and `most_bytes` (at least one), and
/// about how many bytes they are.
pub(super) fn batch_length(results: &[Finished], most: usize, most_bytes: usize) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    for finished in results.iter().take(most) {
        let with = bytes + wire_bytes(finished);
        if count > 0 && with > most_bytes {
            break;
        }
        (count, bytes) = (count + 1, with);
    }
    (count, bytes)
}

fn wire_bytes(finished: &Finished) -> usize {
    let outcome = &finished.outcome;
    RESULT_BYTES
        + finished.of.as_str().len()
        + outcome.error.as_ref().map_or(0, String::len)
        + params_bytes(&outcome.outputs)
        + cost_bytes(&finished.output)
}

/// Reports until the session ends. Results with much output go to `large`, and come back without it.
pub(crate) async fn report(
    shared: Arc<Shared>,
    mut outgoing: UnboundedReceiver<Outgoing>,
    large: UnboundedSender<Finished>,
) -> Error {
    let stuck = Stuck::new(shared.tuning.backoff_most);
    let mut reporter = Reporter {
        shared,
        queue: Queue::default(),
        large,
        offered: None,
        repeated: None,
        most: BATCH,
        pace: Pace::of_control(),
        stuck,
    };
    let mut received = Vec::new();
    loop {
        if reporter.queue.is_empty() {
            let repeat = reporter.offered.is_some() && reporter.offered != reporter.repeated;
            tokio::select! {
                biased;
                count = outgoing.recv_many(&mut received, BATCH) => {
                    if count == 0 {
                        return Error::Bug("the report queue was closed".to_owned());
                    }
                }
                () = tokio::time::sleep(OFFER_AGAIN), if repeat => {
                    reporter.repeated = reporter.offered;
                    if reporter.offered == Some(reporter.shared.holdings.lock().offer().0) {
                        reporter.queue.offer = true;
                    }
                }
                () = tokio::time::sleep_until(reporter.stuck.due()), if !reporter.stuck.is_empty() => {}
            }
        }
        while let Ok(more) = outgoing.try_recv() {
            received.push(more);
        }
        received.drain(..).for_each(|one| reporter.receive(one));
        if !reporter.queue.is_empty() {
            reporter.send().await;
        }
        if reporter.stuck.is_due() {
            reporter.stuck.send(&reporter.shared).await;
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    started: VecDeque<Started>,
    finished: VecDeque<Finished>,
    offer: bool,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.started.is_empty() && self.finished.is_empty() && !self.offer
    }
}

struct Reporter {
    shared: Arc<Shared>,
    queue: Queue,
    large: UnboundedSender<Finished>,
    /// The poll that slots were last offered for, and the last one for which the offer was repeated.
    offered: Option<u64>,
    repeated: Option<u64>,
    /// Facts in the next report. Halved by each rejected report, to find the fact that causes it, and by each timeout;
    /// doubled by each accepted one.
    most: usize,
    /// Bytes in the next report.
    pace: Pace,
    stuck: Stuck,
}

impl Reporter {
    fn receive(&mut self, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Started(started) => self.queue.started.push_back(started),
            Outgoing::Finished(finished) if cost_bytes(&finished.output) > LARGE_BYTES => {
                // Its slot is free now, not when its output has arrived.
                self.queue.offer = true;
                let _ = self.large.send(finished);
            }
            Outgoing::Finished(finished) => self.queue.finished.push_back(finished),
            Outgoing::Offer => self.queue.offer = true,
        }
    }

    async fn send(&mut self) {
        let shared = self.shared.clone();
        let link = shared.links.control_link().await;
        let (poll, free, takes_work) = {
            let holdings = shared.holdings.lock();
            // Facts whose lease was lost or whose work ended in the meantime are obsolete.
            self.queue.started.retain(|one| holdings.runs(one.held));
            self.queue.finished.retain(|one| holdings.holds(one.held));
            let (poll, free) = holdings.offer();
            // The last poll of an agent that stops finds everything that is still on its way.
            (poll, free, !holdings.draining)
        };
        if self.queue.is_empty() {
            return;
        }
        let (started_count, finished_count, bytes) = self.next_batch();
        let report = Report {
            node: shared.node,
            session: shared.session,
            started: self.queue.started.range(..started_count).cloned().collect(),
            finished: self.queue.finished.range(..finished_count).cloned().collect(),
            free,
            poll,
            takes_work,
        };
        let asked = Instant::now();
        let answer = link.report(report).await;
        shared.links.note_result(&link, &answer).await;
        if takes_work && matches!(answer, Err(Fault::Unavailable(_) | Fault::TimedOut(_))) {
            // Assignments may have been lost with the response.
            shared.holdings.lock().disown_poll();
            shared.poll_again.notify_one();
        }
        match answer {
            Ok(answer) if answer.receipts.len() == started_count + finished_count => {
                self.offered = Some(poll);
                self.queue.offer = false;
                self.most = (self.most * 2).min(BATCH);
                self.pace.answered(bytes, asked.elapsed());
                self.acknowledge(started_count, finished_count, &answer.receipts);
                shared.assign(answer.assignments);
            }
            Ok(answer) => {
                let receipts = answer.receipts.len();
                let facts = started_count + finished_count;
                tracing::error!(node = %shared.node, receipts, facts, "invalid response to a report; sending it again");
                tokio::time::sleep(shared.tuning.backoff_most).await;
            }
            Err(Fault::Unavailable(_)) => {}
            Err(Fault::TimedOut(_)) => {
                self.most = ((started_count + finished_count) / 2).max(1);
                self.pace.slower();
            }
            Err(Fault::Rejected(why)) => self.rejected(started_count, finished_count, &why),
            Err(fault) => shared.recheck_session("report", &fault).await,
        }
    }

    /// Returns the counts of starts and of results in the next report, and about how many bytes they are.
    fn next_batch(&mut self) -> (usize, usize, usize) {
        let started_count = self.queue.started.len().min(self.most);
        let room = self.most - started_count;
        let finished = self.queue.finished.make_contiguous();
        let (finished_count, bytes) = batch_length(finished, room, self.pace.bytes());
        (started_count, finished_count, bytes + started_count * STARTED_BYTES)
    }

    fn acknowledge(&mut self, started_count: usize, finished_count: usize, receipts: &[Receipt]) {
        let (for_started, for_finished) = receipts.split_at(started_count);
        let started = self.queue.started.drain(..started_count).zip(for_started);
        let mut refused: Vec<LeaseRef> =
            started.filter(|(_, receipt)| **receipt == Receipt::Refused).map(|(one, _)| one.held).collect();
        let mut recorded = Vec::with_capacity(finished_count);
        for (finished, receipt) in self.queue.finished.drain(..finished_count).zip(for_finished) {
            match receipt {
                Receipt::Recorded => recorded.push(finished.held),
                Receipt::Refused => refused.push(finished.held),
            }
        }
        self.shared.recorded(recorded);
        self.shared.refused(refused);
    }

    fn rejected(&mut self, started_count: usize, finished_count: usize, why: &str) {
        let node = self.shared.node;
        let count = started_count + finished_count;
        if count > 1 {
            tracing::debug!(%node, why, count, "a report was rejected; sending it in parts");
            self.most = count / 2;
            return;
        }
        self.queue.offer = false;
        if let Some(started) = self.queue.started.drain(..started_count).next() {
            tracing::error!(%node, run = %started.of, execution = %started.held.execution, why, "a start was rejected");
        }
        if finished_count == 1
            && let Some(mut finished) = self.queue.finished.pop_front()
        {
            if !finished.output.is_empty() {
                self.shared.sent(finished.held, drop_output(&mut finished, why));
                self.queue.finished.push_front(finished);
                return;
            }
            let (run, execution) = (&finished.of, finished.held.execution);
            tracing::error!(%node, %run, %execution, why, "a result was rejected; keeping it for a retry");
            self.stuck.keep(finished);
        }
    }
}

#[cfg(test)]
mod tests {
    use downbeat_core::execution::{Outcome, Stream, Verdict};
    use downbeat_core::ids::{ExecutionId, LeaseToken, RunId};
    use downbeat_core::work::Parent;
    use downbeat_proto::grpc::finished_to_bytes;
    use downbeat_proto::message::OutputChunk;
    use jiff::Timestamp;
    use uuid::Uuid;

    use super::*;

    fn result(chunks: u64) -> Finished {
        let held =
            LeaseRef { execution: ExecutionId(Uuid::from_u128(1)), token: LeaseToken(Uuid::from_u128(2)) };
        let at = Timestamp::now();
        let chunk = |number: u64| OutputChunk {
            execution: held.execution,
            offset: u64::MAX - number,
            stream: if number % 2 == 1 { Stream::Stderr } else { Stream::Stdout },
            text: "x".to_owned(),
            at,
        };
        Finished {
            held,
            of: Parent::Run(RunId::from("run")),
            outcome: Outcome {
                verdict: Verdict::Failed,
                exit_code: Some(-1),
                error: Some("e".repeat(4096)),
                started_at: at,
                finished_at: at,
                outputs: Default::default(),
                received_at: None,
            },
            output: (0..chunks).map(chunk).collect(),
        }
    }

    #[test]
    fn a_batch_counts_what_its_results_are_on_the_wire() {
        const MOST_BYTES: usize = 3 * 1024 * 1024;
        for chunks in [0, 1, 1000, 10_000] {
            let results = vec![result(chunks); BATCH];
            let (count, bytes) = batch_length(&results, BATCH, MOST_BYTES);
            let wire_bytes = count * finished_to_bytes(results[0].clone()).len();
            assert!(
                wire_bytes <= bytes && bytes <= MOST_BYTES,
                "{chunks}: {count} results, {wire_bytes} bytes"
            );
            assert!(count == BATCH || wire_bytes > MOST_BYTES / 2, "{chunks}: {count}, {wire_bytes} bytes");
        }
        assert_eq!(batch_length(&[result(100_000)], BATCH, MOST_BYTES).0, 1, "at least one");
        assert_eq!(batch_length(&[result(0)], 0, MOST_BYTES), (0, 0));
        assert_eq!(batch_length(&[], BATCH, MOST_BYTES), (0, 0));
    }
}
