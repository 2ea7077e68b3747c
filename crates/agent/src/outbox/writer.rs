//! Owns the writing of the outbox by one thread: group commit. A batch is everything that queued up while the last one
//! was written; results are reported only when they are on disk.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use downbeat_proto::message::{Finished, LeaseRef};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::segments::Segments;
use crate::error::Error;
use crate::private;
use crate::session::Outgoing;
use crate::surroundings::Disk;

/// Idle for this long, the writer removes acknowledged results.
const REST_AFTER: Duration = Duration::from_secs(1);
/// How often writing is retried while it fails.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Results in one batch, so that a slow disk delays a result by at most one batch of bounded size.
const BATCH: usize = 4096;

#[derive(Debug)]
pub(crate) enum Command {
    Keep(Finished),
    Forget(Vec<LeaseRef>),
    Close,
    Abandon,
}

/// The queues need no limit of their own: they contain only held leases, and servers limit how many a node holds.
#[derive(Debug)]
pub(crate) enum Outbox {
    Thread {
        commands: Sender<Command>,
        /// Completes when the thread has ended.
        ended: Mutex<Option<oneshot::Receiver<()>>>,
        problems: Arc<Problems>,
    },
    /// Writes nothing once it is abandoned. The lock is released with it.
    Inline { writer: Mutex<Option<(Writer, File)>>, abandoned: CancellationToken, problems: Arc<Problems> },
}

/// The problems of the outbox, for users.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    /// Found when the outbox was opened.
    damaged: Vec<String>,
    failing: Mutex<Option<String>>,
}

impl Outbox {
    /// Opens and locks the outbox of a data directory, and returns the results of earlier runs in it.
    pub(crate) fn open(
        data: &Path,
        disk: Disk,
        written: UnboundedSender<Outgoing>,
        abandoned: CancellationToken,
    ) -> Result<(Self, Vec<Finished>), Error> {
        let failed = |error| Error::Data { path: data.to_owned(), error };
        private::claim(data).map_err(failed)?;
        let lock = private::create(&data.join("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(Error::DataInUse(data.to_owned())),
            Err(std::fs::TryLockError::Error(error)) => return Err(failed(error)),
        }
        let dir = data.join("outbox");
        let (segments, former) = Segments::open(&dir).map_err(failed)?;
        for damaged in &former.damaged {
            tracing::error!(file = damaged, "a file of the outbox is damaged; its results may be lost");
        }
        let problems = Arc::new(Problems { damaged: former.damaged, failing: Mutex::default() });
        let (unwritten, tried) = (Vec::new(), Instant::now());
        let writer = Writer { segments, written, dir, unwritten, tried, problems: problems.clone() };
        let outbox = match disk {
            Disk::Thread => {
                let (commands, received) = channel();
                let (ending, ended) = oneshot::channel();
                std::thread::Builder::new()
                    .name("outbox".to_owned())
                    .spawn(move || {
                        writer.run(&received);
                        drop(lock);
                        let _ = ending.send(());
                    })
                    .map_err(failed)?;
                Self::Thread { commands, ended: Mutex::new(Some(ended)), problems }
            }
            Disk::Inline => Self::Inline { writer: Mutex::new(Some((writer, lock))), abandoned, problems },
        };
        Ok((outbox, former.results))
    }

    /// Writes a result. It goes to the report queue when it is durable.
    pub(crate) fn keep(&self, finished: Finished) {
        self.send(Command::Keep(finished));
    }

    pub(crate) fn forget(&self, results: Vec<LeaseRef>) {
        if !results.is_empty() {
            self.send(Command::Forget(results));
        }
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        let (Self::Thread { problems, .. } | Self::Inline { problems, .. }) = self;
        let damaged = problems
            .damaged
            .iter()
            .map(|damaged| format!("a file of the outbox is damaged ({damaged}); results in it may be lost"));
        let failing = problems.failing.lock().clone();
        failing.into_iter().chain(damaged).collect()
    }

    fn send(&self, command: Command) {
        match self {
            Self::Thread { commands, .. } => {
                let _ = commands.send(command);
            }
            Self::Inline { writer, abandoned, .. } => {
                if let Some((writer, _)) = &mut *writer.lock()
                    && !abandoned.is_cancelled()
                {
                    writer.carry_out(command);
                }
            }
        }
    }

    /// Writes queued results and releases the directory.
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
            Self::Thread { ended, .. } => {
                // Not joined: a caller that stops waiting for a disk that hangs must be able to end.
                let ended = ended.lock().take();
                if let Some(ended) = ended {
                    let _ = ended.await;
                }
            }
            Self::Inline { writer, .. } => {
                writer.lock().take();
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Writer {
    segments: Segments,
    written: UnboundedSender<Outgoing>,
    dir: PathBuf,
    /// Results that could not be written, and that no server has yet.
    unwritten: Vec<Finished>,
    tried: Instant,
    problems: Arc<Problems>,
}

impl Writer {
    fn run(mut self, received: &Receiver<Command>) {
        loop {
            let Some(first) = self.next_command(received) else { return };
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
                self.close();
                return;
            }
        }
    }

    /// Returns `None` when no more commands follow.
    fn next_command(&mut self, received: &Receiver<Command>) -> Option<Command> {
        let mut wait = REST_AFTER;
        loop {
            match received.recv_timeout(wait) {
                Ok(command) => return Some(command),
                Err(RecvTimeoutError::Timeout) if self.is_failing() => {
                    self.retry();
                    wait = RETRY_AFTER;
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.segments.rest();
                    // Only the next command wakes it: an idle agent does not tick.
                    return received.recv().ok();
                }
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Keep(finished) => self.write(vec![finished]),
            Command::Forget(held) => {
                self.forget(&held, &mut Vec::new());
                self.segments.rest();
            }
            Command::Close => self.close(),
            Command::Abandon => {}
        }
    }

    /// Results that are forgotten before they were written must not be written later: they would stay forever.
    fn forget(&mut self, forgotten: &[LeaseRef], unwritten: &mut Vec<Finished>) {
        if !unwritten.is_empty() || !self.unwritten.is_empty() {
            let forgotten: HashSet<LeaseRef> = forgotten.iter().copied().collect();
            unwritten.retain(|finished| !forgotten.contains(&finished.held));
            self.unwritten.retain(|finished| !forgotten.contains(&finished.held));
        }
        self.segments.forget(forgotten);
    }

    fn write(&mut self, results: Vec<Finished>) {
        if results.is_empty() {
            return;
        }
        if self.is_failing() {
            self.unwritten.extend(results.iter().cloned());
            if self.tried.elapsed() >= RETRY_AFTER {
                self.retry();
            }
        } else if let Err(error) = self.segments.append(&results) {
            self.failed(&error);
            self.unwritten.extend(results.iter().cloned());
        }
        for finished in results {
            let _ = self.written.send(Outgoing::Finished(finished));
        }
    }

    /// Tries one last time to write the unwritten results.
    fn close(&mut self) {
        if self.is_failing() {
            self.retry();
        }
        self.segments.rest();
    }

    fn is_failing(&self) -> bool {
        self.problems.failing.lock().is_some()
    }

    fn retry(&mut self) {
        let retried = if self.unwritten.is_empty() {
            self.segments.probe()
        } else {
            self.segments.append(&self.unwritten)
        };
        match retried {
            Ok(()) => {
                self.unwritten = Vec::new();
                *self.problems.failing.lock() = None;
                tracing::info!(outbox = %self.dir.display(), "results are written to disk again");
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &io::Error) {
        self.tried = Instant::now();
        let problem = format!(
            "results cannot be written to disk: {error} ({}); they are kept in memory, and are lost if the agent is \
             killed before a server has them",
            self.dir.display()
        );
        // Logged once, not per batch.
        if self.problems.failing.lock().replace(problem).is_none() {
            tracing::error!(
                outbox = %self.dir.display(), %error,
                "results cannot be written to disk; keeping them in memory until a server has them"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::super::record::tests::result;
    use super::*;

    fn writer(dir: &Path) -> (Writer, UnboundedReceiver<Outgoing>) {
        let (written, reported) = unbounded_channel();
        let segments = Segments::open(dir).unwrap().0;
        let (unwritten, tried, problems) = (Vec::new(), Instant::now(), Arc::default());
        (Writer { segments, written, dir: dir.to_owned(), unwritten, tried, problems }, reported)
    }

    fn kept(dir: &Path) -> Vec<Finished> {
        Segments::open(dir).unwrap().1.results
    }

    #[test]
    fn a_result_forgotten_within_its_batch_is_neither_written_nor_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (commands, received) = channel();
        for command in [
            Command::Keep(result(1)),
            Command::Keep(result(2)),
            Command::Forget(vec![result(1).held]),
            Command::Close,
        ] {
            commands.send(command).unwrap();
        }
        let (writer, mut reported) = writer(dir.path());
        writer.run(&received);
        assert_eq!(kept(dir.path()), [result(2)]);
        assert!(matches!(reported.try_recv(), Ok(Outgoing::Finished(finished)) if finished == result(2)));
        assert!(reported.try_recv().is_err());
    }

    #[test]
    fn results_that_could_not_be_written_are_written_when_the_disk_is_repaired_unless_a_server_has_them() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("outbox");
        let (mut writer, mut reported) = writer(&dir);
        // No file can be created where the directory is missing.
        fs::remove_dir(&dir).unwrap();
        fs::write(&dir, "").unwrap();
        for number in 1..=3 {
            writer.carry_out(Command::Keep(result(number)));
            assert!(reported.try_recv().is_ok(), "it is reported anyway");
        }
        let problem = writer.problems.failing.lock().clone().expect("the problem is reported");
        assert!(problem.starts_with("results cannot be written to disk: "), "{problem}");
        assert!(problem.contains(&dir.display().to_string()), "{problem}");
        writer.carry_out(Command::Forget(vec![result(2).held]));
        fs::remove_file(&dir).unwrap();
        writer.retry();
        assert_eq!(*writer.problems.failing.lock(), None);
        assert_eq!(kept(&dir), [result(1), result(3)]);
    }

    #[test]
    fn closing_retries_the_results_that_could_not_be_written() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("outbox");
        let (mut writer, _reported) = writer(&dir);
        fs::remove_dir(&dir).unwrap();
        fs::write(&dir, "").unwrap();
        writer.carry_out(Command::Keep(result(1)));
        assert!(writer.is_failing());
        fs::remove_file(&dir).unwrap();
        let (commands, received) = channel();
        for command in [Command::Keep(result(2)), Command::Close] {
            commands.send(command).unwrap();
        }
        writer.run(&received);
        assert_eq!(kept(&dir), [result(1), result(2)]);
    }

    #[test]
    fn a_repaired_disk_is_noticed_without_anything_to_write() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("outbox");
        let (mut writer, _reported) = writer(&dir);
        fs::remove_dir(&dir).unwrap();
        fs::write(&dir, "").unwrap();
        writer.carry_out(Command::Keep(result(1)));
        writer.carry_out(Command::Forget(vec![result(1).held]));
        writer.retry();
        assert!(writer.is_failing());
        fs::remove_file(&dir).unwrap();
        writer.retry();
        assert!(!writer.is_failing());
        assert_eq!(kept(&dir), vec![]);
    }
}
