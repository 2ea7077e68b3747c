//! Owns the reporting of what began and ended: batches of whatever queued up, each sent until a server answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use downbeat_proto::message::{Fault, Finished, Held, Receipt, Report, Started};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::error::Error;
use crate::shared::Shared;

/// Facts in one report.
const BATCH: usize = 1024;
/// Output in one report: with the rest of it well below what a message may hold.
const BATCH_OUTPUT_BYTES: usize = 3 * 1024 * 1024;
/// A report may overtake the poll that it names, and its offer of slots is then lost. This long after the last one
/// the offer is made once more.
const OFFER_AGAIN: Duration = Duration::from_secs(1);

/// What is to be reported.
#[derive(Debug)]
pub(crate) enum Outgoing {
    Started(Started),
    /// It is on disk, or cannot be.
    Finished(Finished),
    /// The number of free slots changed without anything having ended.
    Offer,
}

/// How many of these results fit into one report; at least one.
pub(super) fn batch_length(results: &[Finished]) -> usize {
    let mut bytes = 0;
    let fitting = results.iter().take(BATCH).take_while(|finished| {
        bytes += finished.output.iter().map(|chunk| chunk.text.len()).sum::<usize>();
        bytes <= BATCH_OUTPUT_BYTES
    });
    fitting.count().max(1)
}

/// Reports for as long as the session lives.
pub(crate) async fn report(shared: Arc<Shared>, mut outgoing: UnboundedReceiver<Outgoing>) -> Error {
    let mut reporter =
        Reporter { shared, queue: Queue::default(), offered: None, repeated: None, one_by_one: false };
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
                    if reporter.offered == Some(reporter.shared.holdings().offer().0) {
                        reporter.queue.offer = true;
                    }
                }
            }
        }
        while let Ok(more) = outgoing.try_recv() {
            received.push(more);
        }
        received.drain(..).for_each(|one| reporter.queue.push(one));
        if !reporter.queue.is_empty() {
            reporter.send().await;
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
    fn push(&mut self, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Started(started) => self.started.push_back(started),
            Outgoing::Finished(finished) => self.finished.push_back(finished),
            Outgoing::Offer => self.offer = true,
        }
    }

    fn is_empty(&self) -> bool {
        self.started.is_empty() && self.finished.is_empty() && !self.offer
    }
}

struct Reporter {
    shared: Arc<Shared>,
    queue: Queue,
    /// The poll that slots were last offered for, and the last one for which that was done again.
    offered: Option<u64>,
    repeated: Option<u64>,
    /// A batch was rejected: find the fact that is to blame, so that the others do not suffer with it.
    one_by_one: bool,
}

impl Reporter {
    async fn send(&mut self) {
        let shared = self.shared.clone();
        let link = shared.links.lend().await;
        let (poll, free) = {
            let holdings = shared.holdings();
            // Meanwhile refused, or ended: then there is nothing more to say about it.
            self.queue.started.retain(|one| holdings.runs(one.held));
            self.queue.finished.retain(|one| holdings.holds(one.held));
            holdings.offer()
        };
        if self.queue.is_empty() {
            return;
        }
        let (started_count, finished_count) = self.next_batch();
        let report = Report {
            node: shared.node,
            session: shared.session,
            started: self.queue.started.range(..started_count).cloned().collect(),
            finished: self.queue.finished.range(..finished_count).cloned().collect(),
            free,
            poll,
        };
        let answer = link.report(report).await;
        shared.links.settle(&link, &answer).await;
        match answer {
            Ok(answer) if answer.receipts.len() == started_count + finished_count => {
                self.offered = Some(poll);
                self.queue.offer = false;
                self.one_by_one = false;
                self.acknowledge(started_count, finished_count, &answer.receipts);
            }
            Ok(answer) => {
                let receipts = answer.receipts.len();
                let facts = started_count + finished_count;
                tracing::error!(node = %shared.node, receipts, facts, "a report was answered wrongly; sending it again");
                tokio::time::sleep(shared.tuning.backoff_most).await;
            }
            Err(Fault::Unavailable(_)) => {}
            Err(Fault::Rejected(why)) => self.rejected(started_count, finished_count, &why),
            Err(fault) => shared.doubted("report", &fault).await,
        }
    }

    fn next_batch(&mut self) -> (usize, usize) {
        if self.one_by_one {
            return if self.queue.started.is_empty() {
                (0, self.queue.finished.len().min(1))
            } else {
                (1, 0)
            };
        }
        let finished = self.queue.finished.make_contiguous();
        let finished_count = if finished.is_empty() { 0 } else { batch_length(finished) };
        (self.queue.started.len().min(BATCH), finished_count)
    }

    fn acknowledge(&mut self, started_count: usize, finished_count: usize, receipts: &[Receipt]) {
        let (for_started, for_finished) = receipts.split_at(started_count);
        let started = self.queue.started.drain(..started_count).zip(for_started);
        let mut refused: Vec<Held> =
            started.filter(|(_, receipt)| **receipt == Receipt::Refused).map(|(one, _)| one.held).collect();
        let mut recorded = Vec::with_capacity(finished_count);
        {
            let mut holdings = self.shared.holdings();
            for (finished, receipt) in self.queue.finished.drain(..finished_count).zip(for_finished) {
                match receipt {
                    Receipt::Recorded => {
                        holdings.acknowledged(finished.held);
                        recorded.push(finished.held);
                    }
                    Receipt::Refused => refused.push(finished.held),
                }
            }
        }
        self.shared.outbox.forget(recorded);
        self.shared.refused(refused);
        self.shared.changed.notify_waiters();
    }

    fn rejected(&mut self, started_count: usize, finished_count: usize, why: &str) {
        let node = self.shared.node;
        if started_count + finished_count > 1 {
            tracing::warn!(%node, why, "a report was rejected; sending its facts one by one");
            self.one_by_one = true;
            return;
        }
        self.queue.offer = false;
        if let Some(started) = self.queue.started.drain(..started_count).next() {
            tracing::error!(%node, run = %started.run, execution = %started.held.execution, why, "a start was rejected");
        }
        if let Some(finished) = self.queue.finished.drain(..finished_count).next() {
            let (run, execution) = (&finished.run, finished.held.execution);
            tracing::error!(%node, %run, %execution, why, "a result was rejected; it is dropped");
            self.shared.holdings().acknowledged(finished.held);
            self.shared.outbox.forget(vec![finished.held]);
            self.shared.changed.notify_waiters();
        }
        self.one_by_one = !self.queue.is_empty();
    }
}
