//! Owns the writing of the outbox, by a thread that gathers: group commit. A batch is whatever queued up while the last was written;
//! results go on to be reported only when they are on disk.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use downbeat_proto::message::{Finished, Held};
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

use super::segments::Segments;
use crate::error::Error;
use crate::session::Outgoing;
use crate::surroundings::Disk;

/// Without anything to write for this long, acknowledged results are cleared away.
const REST_AFTER: Duration = Duration::from_secs(1);
/// Results in one batch, so that a slow disk delays no result by more than one batch of bounded size.
const BATCH: usize = 4096;

#[derive(Debug)]
pub(crate) enum Command {
    Keep(Finished),
    Forget(Vec<Held>),
    Close,
    Abandon,
}

/// Neither queue behind this needs a bound of its own: what is in them is held, and servers bound what a node holds.
#[derive(Debug)]
pub(crate) enum Outbox {
    Thread {
        commands: Sender<Command>,
        thread: Mutex<Option<JoinHandle<()>>>,
    },
    /// Nothing is written once it is abandoned. The lock is let go of with it.
    Inline {
        writer: Mutex<Option<(Writer, File)>>,
        abandoned: CancellationToken,
    },
}

impl Outbox {
    /// Opens the outbox of a data directory, which it locks, and answers what a former life left in it.
    pub(crate) fn open(
        data: &Path,
        disk: Disk,
        written: UnboundedSender<Outgoing>,
        abandoned: CancellationToken,
    ) -> Result<(Self, Vec<Finished>), Error> {
        let failed = |error| Error::Data { path: data.to_owned(), error };
        std::fs::create_dir_all(data).map_err(failed)?;
        let lock = File::create(data.join("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(Error::DataInUse(data.to_owned())),
            Err(std::fs::TryLockError::Error(error)) => return Err(failed(error)),
        }
        let dir = data.join("outbox");
        let (segments, former) = Segments::open(&dir).map_err(failed)?;
        let writer = Writer { segments, written, dir, failing: false };
        let outbox = match disk {
            Disk::Thread => {
                let (commands, received) = channel();
                let thread = std::thread::Builder::new()
                    .name("outbox".to_owned())
                    .spawn(move || {
                        writer.run(&received);
                        drop(lock);
                    })
                    .map_err(failed)?;
                Self::Thread { commands, thread: Mutex::new(Some(thread)) }
            }
            Disk::Inline => Self::Inline { writer: Mutex::new(Some((writer, lock))), abandoned },
        };
        Ok((outbox, former))
    }

    /// Writes a result; it goes on to the report queue when it is durable.
    pub(crate) fn keep(&self, finished: Finished) {
        self.send(Command::Keep(finished));
    }

    pub(crate) fn forget(&self, results: Vec<Held>) {
        if !results.is_empty() {
            self.send(Command::Forget(results));
        }
    }

    fn send(&self, command: Command) {
        match self {
            Self::Thread { commands, .. } => {
                let _ = commands.send(command);
            }
            Self::Inline { writer, abandoned } => {
                let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                match &mut *writer {
                    Some((writer, _)) if !abandoned.is_cancelled() => {
                        writer.carry_out(command);
                    }
                    Some(_) | None => {}
                }
            }
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
        self.send(last);
        match self {
            Self::Thread { thread, .. } => {
                let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(thread) = thread {
                    let _ = tokio::task::spawn_blocking(move || thread.join()).await;
                }
            }
            Self::Inline { writer, .. } => {
                writer.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Writer {
    segments: Segments,
    written: UnboundedSender<Outgoing>,
    dir: PathBuf,
    /// The last write failed: said once, not per batch.
    failing: bool,
}

impl Writer {
    fn run(mut self, received: &Receiver<Command>) {
        loop {
            let first = match received.recv_timeout(REST_AFTER) {
                Ok(command) => command,
                Err(RecvTimeoutError::Timeout) => {
                    self.segments.rest();
                    // Woken by the next command only: an idle agent does not tick.
                    match received.recv() {
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
                next = if closing || results.len() >= BATCH { None } else { received.try_recv().ok() };
            }
            self.write(results);
            if closing {
                self.segments.rest();
                return;
            }
        }
    }

    /// One command by itself.
    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Keep(finished) => self.write(vec![finished]),
            Command::Forget(held) => {
                self.segments.forget(&held);
                self.segments.rest();
            }
            Command::Close | Command::Abandon => {}
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
        Writer { segments, written, dir: dir.path().to_owned(), failing: false }.run(&received);
        assert_eq!(Segments::open(dir.path()).unwrap().1, [result(2)]);
        assert!(matches!(reported.try_recv(), Ok(Outgoing::Finished(finished)) if finished == result(2)));
        assert!(reported.try_recv().is_err());
    }
}
