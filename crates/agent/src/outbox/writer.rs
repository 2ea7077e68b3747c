//! Owns the thread that writes the outbox: group commit. A batch is whatever queued up while the last was written;
//! results go on to be reported only when they are on disk.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use downbeat_proto::message::{Finished, Held};
use tokio::sync::mpsc::UnboundedSender;

use super::segments::Segments;
use crate::error::Error;
use crate::session::Outgoing;

/// Without anything to write for this long, acknowledged results are cleared away.
const REST_AFTER: Duration = Duration::from_secs(1);
/// Results in one batch, so that a slow disk delays no result by more than one batch of bounded size.
const BATCH: usize = 4096;

enum Command {
    Keep(Finished),
    Forget(Vec<Held>),
    Close,
    Abandon,
}

/// Neither queue behind this needs a bound of its own: what is in them is held, and servers bound what a node holds.
#[derive(Debug)]
pub(crate) struct Outbox {
    commands: Sender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Outbox {
    /// Opens the outbox of a data directory, which it locks, and answers what a former life left in it.
    pub(crate) fn open(
        data: &Path,
        written: UnboundedSender<Outgoing>,
    ) -> Result<(Self, Vec<Finished>), Error> {
        let failed = |error| Error::Data { path: data.to_owned(), error };
        std::fs::create_dir_all(data).map_err(failed)?;
        let lock = std::fs::File::create(data.join("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(Error::DataInUse(data.to_owned())),
            Err(std::fs::TryLockError::Error(error)) => return Err(failed(error)),
        }
        let dir = data.join("outbox");
        let (segments, former) = Segments::open(&dir).map_err(failed)?;
        let (commands, received) = channel();
        let writer = Writer { segments, received, written, dir, failing: false };
        let thread = std::thread::Builder::new()
            .name("outbox".to_owned())
            .spawn(move || {
                writer.run();
                drop(lock);
            })
            .map_err(failed)?;
        Ok((Self { commands, thread: Mutex::new(Some(thread)) }, former))
    }

    /// Writes a result; it goes on to the report queue when it is durable.
    pub(crate) fn keep(&self, finished: Finished) {
        let _ = self.commands.send(Command::Keep(finished));
    }

    pub(crate) fn forget(&self, results: Vec<Held>) {
        if !results.is_empty() {
            let _ = self.commands.send(Command::Forget(results));
        }
    }

    /// Writes what is queued, and lets go of the directory.
    pub(crate) async fn close(&self) {
        self.finish(Command::Close).await;
    }

    /// Stops as a crash would.
    pub(crate) async fn abandon(&self) {
        self.finish(Command::Abandon).await;
    }

    async fn finish(&self, last: Command) {
        let _ = self.commands.send(last);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

struct Writer {
    segments: Segments,
    received: Receiver<Command>,
    written: UnboundedSender<Outgoing>,
    dir: PathBuf,
    /// The last write failed: said once, not per batch.
    failing: bool,
}

impl Writer {
    fn run(mut self) {
        loop {
            let first = match self.received.recv_timeout(REST_AFTER) {
                Ok(command) => command,
                Err(RecvTimeoutError::Timeout) => {
                    self.segments.rest();
                    // Woken by the next command only: an idle agent does not tick.
                    match self.received.recv() {
                        Ok(command) => command,
                        Err(_) => return,
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let mut results: Vec<Finished> = Vec::new();
            let mut closing = false;
            let mut next = Some(first);
            while let Some(command) = next {
                match command {
                    Command::Keep(finished) => results.push(finished),
                    Command::Forget(held) => self.forget(&held, &mut results),
                    Command::Close => closing = true,
                    Command::Abandon => return,
                }
                next = if closing || results.len() >= BATCH { None } else { self.received.try_recv().ok() };
            }
            self.write(results);
            if closing {
                self.segments.rest();
                return;
            }
        }
    }

    /// What is forgotten before it was written must not be written after all: nobody would forget it again.
    fn forget(&mut self, forgotten: &[Held], unwritten: &mut Vec<Finished>) {
        if !unwritten.is_empty() {
            let forgotten: HashSet<Held> = forgotten.iter().copied().collect();
            unwritten.retain(|finished| !forgotten.contains(&finished.held));
        }
        self.segments.forget(forgotten);
    }

    fn write(&mut self, results: Vec<Finished>) {
        if results.is_empty() {
            return;
        }
        match self.segments.append(&results) {
            Ok(()) => {
                if std::mem::take(&mut self.failing) {
                    tracing::info!(outbox = %self.dir.display(), "results can be kept on disk again");
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!(
                        outbox = %self.dir.display(), %error,
                        "results cannot be kept on disk; they are in memory until a server has them"
                    );
                }
            }
        }
        for finished in results {
            let _ = self.written.send(Outgoing::Finished(finished));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::super::record::tests::result;
    use super::*;

    #[test]
    fn what_is_forgotten_in_the_batch_that_would_keep_it_is_neither_written_nor_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (segments, _) = Segments::open(dir.path()).unwrap();
        let (commands, received) = channel();
        let (written, mut reported) = unbounded_channel();
        for command in [
            Command::Keep(result(1)),
            Command::Keep(result(2)),
            Command::Forget(vec![result(1).held]),
            Command::Close,
        ] {
            commands.send(command).unwrap();
        }
        Writer { segments, received, written, dir: dir.path().to_owned(), failing: false }.run();
        assert_eq!(Segments::open(dir.path()).unwrap().1, [result(2)]);
        assert!(matches!(reported.try_recv(), Ok(Outgoing::Finished(finished)) if finished == result(2)));
        assert!(reported.try_recv().is_err());
    }
}
