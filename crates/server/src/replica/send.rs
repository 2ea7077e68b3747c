//! Sends a primary's data to one replica: a snapshot if it cannot continue, then the committed changes.
//!
//! A slow replica costs only its own reads: the stream buffers one batch, and a replica that falls behind
//! is served from the store. If the store no longer has the events, the replica gets a new snapshot.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use downbeat_core::ids::{ExecutionId, NodeId};
use downbeat_core::retention::StandingRule;
use downbeat_core::{Change, Event, Portion, Timestamp, limits};
use downbeat_store::{self as store, EventFilter, Kept, Part, Seen, ServerRecord};
use tokio::sync::broadcast::Receiver;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use super::frame::{Frame, VERSION, fingerprint, fitting, mask_event, mask_execution};
use super::outputs::{Check, Cursors};
use super::upstream::Since;
use crate::journal::{Batches, Published};
use crate::parts::Parts;
use crate::signal::heard;

/// The interval of beats, also when nothing happens.
const BEAT: Duration = Duration::from_millis(500);
/// Every this many beats, the primary also sends heartbeats and servers.
const SELDOM: u32 = 4;
/// Every this many beats, the primary checks all executions for output that another server received without a signal:
/// it crashed in between. The check is a query over everything that runs.
const RARELY: u32 = 15 * SELDOM;
/// What is read from the store at once.
const READ: Portion = Portion::new(limits::EVENTS_AT_ONCE, limits::EVENTS_AT_ONCE_BYTES);
/// Chunks of output in one frame: a few megabytes. Events with more output are sent in several frames.
const CHUNKS: u32 = 256;
/// How many events before a replica's reconnection are checked for late output.
const LOOK_BACK: u64 = 100;
/// Lines that may wait for the replica.
const LINES: usize = 4;
/// A replica that reads nothing for this long is disconnected. This also limits how long a snapshot blocks
/// the store's cleanup.
const PATIENCE: Duration = Duration::from_secs(60);
/// Snapshots at the same time: each uses a connection of the store.
pub(crate) const SNAPSHOTS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    CaughtUp,
    Stopped,
}

#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("it disconnected, or read nothing for {}s", PATIENCE.as_secs())]
    Gone,
    #[error("it reads a snapshot at less than {} KiB/s", limits::SNAPSHOT_BYTES_PER_S / 1024)]
    Slow,
    #[error("after event {after} there is a line of {bytes} bytes, which no replica reads")]
    TooLong { bytes: usize, after: u64 },
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// How fast a replica reads a snapshot.
#[derive(Clone, Copy, Debug)]
struct Rate {
    begun: Instant,
    bytes: u64,
}

impl Rate {
    /// Returns whether the replica needs longer than it may for what it has read. A short snapshot may take
    /// `PATIENCE` in any case.
    fn is_too_slow(self, now: Instant) -> bool {
        let most = PATIENCE + Duration::from_secs(self.bytes / limits::SNAPSHOT_BYTES_PER_S);
        now.duration_since(self.begun) > most
    }
}

/// Starts a task that sends lines to the returned channel.
pub(crate) fn stream(parts: &Parts, since: Since, until: Until) -> mpsc::Receiver<Bytes> {
    let (lines, receiver) = mpsc::channel(LINES);
    let sender = Sender {
        // Subscribed before the first read, so that nothing is missed.
        feed: parts.feed.subscribe(),
        grown: parts.outputs.grown(),
        parts: parts.clone(),
        lines,
        seen: since.seq,
        cursors: Cursors::default(),
        unnamed: parts.outputs.unnamed(),
        presence: HashMap::new(),
        servers: Vec::new(),
        kept: None,
        next_beat: Instant::now(),
        beats: 0,
    };
    let closing = parts.closing.clone();
    let send = async move {
        if let Some(Err(why)) = closing.run_until_cancelled(sender.run(since, until)).await {
            info!(%why, "stopped sending to a replica");
        }
    };
    tokio::spawn(tracing::Instrument::instrument(send, parts.span.clone()));
    receiver
}

struct Sender {
    parts: Parts,
    feed: Batches,
    grown: Receiver<ExecutionId>,
    lines: mpsc::Sender<Bytes>,
    /// The replica has all events up to this one.
    seen: u64,
    cursors: Cursors,
    /// See [`Outputs::unnamed`](crate::output::Outputs::unnamed).
    unnamed: u64,
    /// The values that were last sent.
    presence: HashMap<NodeId, Seen>,
    servers: Vec<ServerRecord>,
    kept: Option<Kept>,
    next_beat: Instant,
    beats: u32,
}

enum Wake {
    Batch(Arc<Published>),
    Grown(ExecutionId),
    /// Signals were missed.
    Lagged,
    Beat,
}

impl Sender {
    async fn run(mut self, since: Since, until: Until) -> Result<(), Ended> {
        let hello = Frame::Hello {
            version: VERSION,
            server: self.parts.itself.name.clone(),
            output_max_bytes: self.parts.settings.output_max_bytes,
            seq: Some(self.parts.store.last_seq().await?),
            at: self.parts.clock.now(),
        };
        self.send(&hello).await?;
        if self.can_continue(&since).await? {
            info!(since = since.seq, "a replica continues");
            self.continue_copy().await?;
        } else {
            self.reset().await?;
        }
        loop {
            self.beat().await?;
            if until == Until::CaughtUp {
                return Ok(());
            }
            while Instant::now() < self.next_beat {
                match self.wait().await {
                    Wake::Batch(events) => self.take(&events).await?,
                    Wake::Grown(id) => self.grew(id).await?,
                    Wake::Lagged => {
                        self.cursors.all_may_have_grown();
                        self.catch_up().await?;
                    }
                    Wake::Beat => {}
                }
            }
        }
    }

    /// Sends a frame; returns the bytes of its line.
    async fn send(&self, frame: &Frame) -> Result<u64, Ended> {
        let line = frame.line();
        let bytes = line.len();
        if bytes > limits::REPLICA_LINE_BYTES {
            return Err(Ended::TooLong { bytes, after: self.seen });
        }
        match timeout(PATIENCE, self.lines.send(line.into())).await {
            Ok(Ok(())) => Ok(bytes as u64),
            Ok(Err(_)) | Err(_) => Err(Ended::Gone),
        }
    }

    async fn wait(&mut self) -> Wake {
        tokio::select! {
            biased;
            () = sleep_until(self.next_beat) => Wake::Beat,
            batch = self.feed.next() => batch.map_or(Wake::Lagged, Wake::Batch),
            grown = heard(&mut self.grown) => grown.map_or(Wake::Lagged, Wake::Grown),
        }
    }

    /// Returns whether the replica's events are a prefix of this store's events, and the rest still exists.
    async fn can_continue(&self, since: &Since) -> Result<bool, Ended> {
        if since.seq == 0 || since.seq > self.parts.store.last_seq().await? {
            return Ok(false);
        }
        let before = since.seq - 1;
        let mut events =
            self.parts.store.events(&EventFilter { since: before, run: None }, Portion::of_rows(1)).await?;
        Ok(match events.first_mut() {
            Some(event) if event.seq == since.seq => {
                mask_event(event);
                since.fingerprint.as_deref().is_none_or(|known| known == fingerprint(event))
            }
            // Its last event no longer exists here; the next one may be the first that does, or may still come.
            Some(event) => event.seq == since.seq + 1,
            None => since.seq == self.parts.store.last_seq().await?,
        })
    }

    async fn continue_copy(&mut self) -> Result<(), Ended> {
        self.send_kept().await?;
        // Listed before the events are read: the replica then knows all of these executions.
        let open = self.parts.store.open_executions().await?;
        let now = Instant::now();
        let mut back = EventFilter { since: self.seen.saturating_sub(LOOK_BACK), run: None };
        while back.since < self.seen {
            let mut before = self.parts.store.events(&back, READ).await?;
            back.since = before.last().map_or(self.seen, |event| event.seq);
            before.retain(|event| event.seq <= self.seen);
            for (id, _) in self.cursors.ending(&before) {
                self.cursors.look_again(id, now);
            }
        }
        self.catch_up().await?;
        for execution in &open {
            self.cursors.begin(execution, self.parts.clock.now(), now);
        }
        // The end of the replica's output is unknown: the replica skips chunks that it has.
        self.cursors.all_may_have_grown();
        self.send_grown().await
    }

    async fn reset(&mut self) -> Result<(), Ended> {
        let snapshots = Arc::clone(&self.parts.snapshots);
        let _permit = snapshots.acquire().await.expect("it is never closed");
        info!("sending a snapshot to a replica");
        self.send(&Frame::Reset).await?;
        self.cursors = Cursors::default();
        self.presence.clear();
        self.kept = None;
        let (to, mut parts) = mpsc::channel(1);
        let store = Arc::clone(&self.parts.store);
        let reading = tokio::spawn(async move { store.snapshot(to).await });
        let mut rate = Rate { begun: Instant::now(), bytes: 0 };
        while let Some(mut part) = parts.recv().await {
            self.note(&mut part);
            rate.bytes += self.send(&Frame::Part(part)).await?;
            if rate.is_too_slow(Instant::now()) {
                return Err(Ended::Slow);
            }
        }
        reading
            .await
            .map_err(|error| store::Error::Unavailable(format!("cannot read a snapshot: {error}")))??;
        Ok(())
    }

    /// Masks a part of the snapshot, and notes what the replica knows after it.
    fn note(&mut self, part: &mut Part) {
        let (wall, now) = (self.parts.clock.now(), Instant::now());
        match part {
            Part::Clusters(_)
            | Part::RemovedClusters(_)
            | Part::Nodes(_)
            | Part::Tombstones(_)
            | Part::Jobs(_)
            | Part::JobVersions(_)
            | Part::Backfills(_)
            | Part::Runs(_)
            | Part::Holds(_)
            | Part::Deliveries(_) => {}
            Part::Executions(executions) => {
                for execution in executions {
                    self.cursors.begin(execution, wall, now);
                    mask_execution(execution);
                }
            }
            Part::Output(chunks) => self.cursors.sent(chunks),
            Part::Events(events) => events.iter_mut().for_each(mask_event),
            Part::End { seq } => self.seen = *seq,
        }
    }

    async fn take(&mut self, batch: &[Event]) -> Result<(), Ended> {
        let known = batch.partition_point(|event| event.seq <= self.seen);
        match batch.get(known) {
            None => Ok(()),
            Some(event) if event.seq == self.seen + 1 => self.send_events(&batch[known..]).await,
            // Another server committed in between: the store has its events.
            Some(_) => self.catch_up().await,
        }
    }

    /// Sends events from the store until the replica has all of them.
    async fn catch_up(&mut self) -> Result<(), Ended> {
        loop {
            // Read before the events: all events up to this number can be read, unless they were removed.
            let last = self.parts.store.last_seq().await?;
            let filter = EventFilter { since: self.seen, run: None };
            let events = self.parts.store.events(&filter, READ).await?;
            match events.first() {
                Some(event) if event.seq == self.seen + 1 => self.send_events(&events).await?,
                None if last <= self.seen => return Ok(()),
                _ => {
                    warn!(
                        since = self.seen,
                        "a replica is too far behind: the store no longer has its next events; it gets a snapshot"
                    );
                    self.reset().await?;
                }
            }
        }
    }

    /// Sends events, with all output of the executions that they end.
    async fn send_events(&mut self, events: &[Event]) -> Result<(), Ended> {
        let is_keyed = |event: &Event| matches!(&event.change, Change::RunCreated { run, .. } if run.idempotency_key.is_some());
        if events.iter().any(is_keyed) {
            // The key may belong to a run that was just removed.
            self.send_kept().await?;
        }
        if events.iter().any(|event| matches!(event.change, Change::ClusterDeleted { .. })) {
            // The replica removes the rows of the cluster with the next one, whether the primary has any left or not.
            self.kept = None;
        }
        let (mut rest, mut size) = (events, events.len());
        while !rest.is_empty() {
            size = size.clamp(1, fitting(rest));
            let (now, later) = rest.split_at(size);
            let ending = self.cursors.ending(now);
            let mut output = if ending.is_empty() {
                Vec::new()
            } else {
                self.parts.store.output_of(&ending, CHUNKS).await?
            };
            if output.len() >= CHUNKS as usize {
                if size > 1 {
                    size /= 2;
                    continue;
                }
                // The replica knows the execution: an earlier event has added it.
                self.send_output(ending).await?;
                output.clear();
            }
            self.cursors.follow(now, Instant::now());
            self.cursors.sent(&output);
            let mut events = now.to_vec();
            events.iter_mut().for_each(mask_event);
            self.send(&Frame::Changes { events, output }).await?;
            self.seen += size as u64;
            rest = later;
        }
        // Output of executions that the replica knows only now.
        self.send_grown().await
    }

    async fn grew(&mut self, id: ExecutionId) -> Result<(), Ended> {
        let mut check = self.cursors.grew(id);
        while let Ok(id) = self.grown.try_recv() {
            check = check.max(self.cursors.grew(id));
        }
        if check == Check::All {
            self.cursors.all_may_have_grown();
        }
        self.send_grown().await
    }

    async fn send_grown(&mut self) -> Result<(), Ended> {
        let grown = self.cursors.take_grown();
        self.send_output(grown).await
    }

    async fn send_output(&mut self, mut from: Vec<(ExecutionId, u64)>) -> Result<(), Ended> {
        while !from.is_empty() {
            let output = self.parts.store.output_of(&from, CHUNKS).await?;
            let Some(last) = output.last() else { return Ok(()) };
            let (id, end) = (last.execution, last.offset + last.text.len() as u64);
            let more = output.len() == CHUNKS as usize;
            self.cursors.sent(&output);
            self.send(&Frame::Changes { events: Vec::new(), output }).await?;
            if !more {
                return Ok(());
            }
            // Output is sorted by execution: those before the last one are done.
            from.retain(|(other, _)| *other >= id);
            from.iter_mut().filter(|(other, _)| *other == id).for_each(|(_, start)| *start = end);
        }
        Ok(())
    }

    /// Returns what this server keeps of standing tasks, as of the last minute: with each new one, the replica looks for
    /// executions that are no longer kept.
    fn standing_rule(&self) -> StandingRule {
        let now = self.parts.clock.now();
        let minute = Timestamp::from_second(now.as_second() / 60 * 60).unwrap_or(now);
        let before = self.parts.settings.retention().old_before(minute);
        StandingRule { attempts: self.parts.settings.keep_executions, before }
    }

    async fn send_kept(&mut self) -> Result<(), Ended> {
        let kept = Kept { standing: Some(self.standing_rule()), ..self.parts.store.kept().await? };
        if self.kept.as_ref() != Some(&kept) {
            self.send(&Frame::Kept(kept.clone())).await?;
            self.kept = Some(kept);
        }
        Ok(())
    }

    /// Sends data that is not in events, and a beat.
    async fn beat(&mut self) -> Result<(), Ended> {
        self.catch_up().await?;
        self.send_kept().await?;
        if self.beats.is_multiple_of(SELDOM) {
            self.send_presence().await?;
            self.send_servers().await?;
            let unnamed = self.parts.outputs.unnamed();
            let is_unnamed = std::mem::replace(&mut self.unnamed, unnamed) != unnamed;
            if self.parts.store.is_shared() && (is_unnamed || self.beats.is_multiple_of(RARELY)) {
                self.cursors.all_may_have_grown();
                self.send_grown().await?;
            }
        }
        let late = self.cursors.take_late(Instant::now());
        self.send_output(late).await?;
        let seq = self.parts.store.last_seq().await?;
        self.send(&Frame::Beat { seq, at: self.parts.clock.now() }).await?;
        self.beats = self.beats.wrapping_add(1);
        self.next_beat = Instant::now() + BEAT;
        Ok(())
    }

    async fn send_presence(&mut self) -> Result<(), Ended> {
        let mut changed = self.parts.store.presence().await?;
        changed.retain(|seen| self.presence.get(&seen.0) != Some(seen));
        if !changed.is_empty() {
            self.presence.extend(changed.iter().map(|seen| (seen.0, *seen)));
            self.send(&Frame::Presence(changed)).await?;
        }
        Ok(())
    }

    async fn send_servers(&mut self) -> Result<(), Ended> {
        let servers = self.parts.store.servers().await?;
        if servers != self.servers {
            self.send(&Frame::Servers(servers.clone())).await?;
            self.servers = servers;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_may_take_a_minute_and_then_a_second_for_each_part_of_its_bytes() {
        let begun = Instant::now();
        let slow = |bytes, after: u64| Rate { begun, bytes }.is_too_slow(begun + Duration::from_secs(after));
        let second = limits::SNAPSHOT_BYTES_PER_S;
        for (bytes, after, is_too_slow) in [
            (0, 60, false),
            (0, 61, true),
            (second - 1, 61, true),
            (second, 61, false),
            (1_000 * second, 1_060, false),
        ] {
            assert_eq!(slow(bytes, after), is_too_slow, "{bytes} bytes after {after}s");
        }
        // A line of four megabytes each minute is too slow.
        assert!((2..20).any(|minute| slow(minute * 4 * 1024 * 1024, minute * 60)));
    }
}
