//! Owns the checkpoints: a thread beside the writer moves the pages of the log into the database file, so that commits
//! need not wait for it.
//!
//! SQLite begins the log again only at a moment when all of its pages were moved. A busy writer adds pages all the time,
//! so at a certain size it moves the few that are left by itself.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use rusqlite::hooks::Wal;
use rusqlite::{Connection, ErrorCode};

use super::connect;
use super::failure::Result;
use crate::port::Error;

/// Sizes of the log, in pages of 4 KiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    /// The thread moves this many at once. A page that many transactions wrote is then moved once.
    every: i32,
    /// The writer itself moves what is left of a log of this size.
    most: i32,
}

impl Default for Pages {
    fn default() -> Self {
        Self { every: 4_000, most: 16_000 }
    }
}

/// Starts the thread. It ends when the writer's connection is closed.
pub(super) fn start(path: &Path, writer: &mut Connection, pages: Pages) -> Result<JoinHandle<()>> {
    let connection = connect::beside_writer(path)?;
    let (request, requests) = sync_channel(1);
    let mut log = Log { pages, requested: 0, request };
    writer.wal_hook(Some(move |wal: &mut Wal, size| {
        log.committed(wal, size);
        Ok(())
    }))?;
    let run = move || run(&connection, &requests);
    let failed = |error| Error::Unavailable(format!("cannot start the store's checkpoint thread: {error}"));
    Ok(thread::Builder::new().name("sqlite-checkpoint".to_owned()).spawn(run).map_err(failed)?)
}

fn run(connection: &Connection, requests: &Receiver<()>) {
    while requests.recv().is_ok() {
        report(connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())));
    }
}

/// What the writer knows of its log.
struct Log {
    pages: Pages,
    /// The size at which the thread was last asked to move pages.
    requested: i32,
    request: SyncSender<()>,
}

impl Log {
    /// Takes in the size of the log after a commit.
    fn committed(&mut self, wal: &mut Wal, size: i32) {
        if size < self.requested {
            self.requested = 0;
        }
        if size >= self.pages.most {
            report(wal.checkpoint());
        } else if size >= self.requested + self.pages.every && self.request.try_send(()).is_ok() {
            self.requested = size;
        }
    }
}

/// A checkpoint that cannot be made now is made later.
fn report(result: rusqlite::Result<()>) {
    if let Err(error) = result
        && error.sqlite_error_code() != Some(ErrorCode::DatabaseBusy)
    {
        tracing::warn!(%error, "cannot move the log of the store into its file; it is tried again later");
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const PAGES: Pages = Pages { every: 50, most: 400 };
    /// The size of the log's header and of a page with its header.
    const HEADER: u64 = 32;
    const FRAME: u64 = 24 + 4_096;

    struct Files {
        writer: Connection,
        thread: JoinHandle<()>,
        dir: tempfile::TempDir,
    }

    fn started(pages: Pages) -> Files {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test.db");
        let mut writer = connect::writer(&path).unwrap();
        writer.execute_batch("CREATE TABLE numbers (number INTEGER PRIMARY KEY, text TEXT)").unwrap();
        let thread = start(&path, &mut writer, pages).unwrap();
        Files { writer, thread, dir }
    }

    impl Files {
        fn commit(&self, number: u32) {
            let text = "x".repeat(8_000);
            self.writer.execute("INSERT INTO numbers VALUES (?1, ?2)", (number, text)).unwrap();
        }

        /// Returns how many pages the log's file has room for.
        fn room(&self) -> u64 {
            let size = std::fs::metadata(self.dir.path().join("test.db-wal")).unwrap().len();
            (size - HEADER) / FRAME
        }

        /// Returns how many pages of the log are not in the file yet.
        fn left(&self) -> i64 {
            let left = |row: &rusqlite::Row<'_>| Ok(row.get::<_, i64>(1)? - row.get::<_, i64>(2)?);
            self.writer.query_row("PRAGMA wal_checkpoint(NOOP)", [], left).unwrap()
        }

        fn close(self) {
            drop(self.writer);
            self.thread.join().unwrap();
            let path = self.dir.path().join("test.db");
            let rows: u32 = Connection::open(&path)
                .unwrap()
                .query_row("SELECT count(*) FROM numbers", [], |row| row.get(0))
                .unwrap();
            assert_eq!(rows, 1_000);
            // Checked after that connection: of two that close at the same time, neither is the last one, and the log stays.
            assert!(!path.with_extension("db-wal").exists());
        }
    }

    #[test]
    fn the_log_of_a_busy_writer_is_bounded() {
        let files = started(PAGES);
        for number in 0..1_000 {
            files.commit(number);
            // While the thread is at it, the writer cannot move pages: it tries again after each commit.
            assert!(files.room() < 1_000, "{} pages after {number} commits", files.room());
        }
        files.close();
    }

    #[test]
    fn the_thread_moves_pages_while_the_writer_does_nothing() {
        let files = started(Pages { most: i32::MAX, ..PAGES });
        (0..1_000).for_each(|number| files.commit(number));
        let begun = Instant::now();
        while files.left() >= i64::from(PAGES.every) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{} pages are left", files.left());
            thread::yield_now();
        }
        files.close();
    }

    #[test]
    fn a_reader_delays_the_checkpoint_and_no_commit() {
        let files = started(PAGES);
        let reader = connect::reader(&files.dir.path().join("test.db")).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM numbers").unwrap();
        (0..500).for_each(|number| files.commit(number));
        assert!(files.room() > 1_000, "{} pages", files.room());
        reader.execute_batch("COMMIT").unwrap();
        let room = files.room();
        (500..1_000).for_each(|number| files.commit(number));
        // The thread may just have been at it: then the writer tries again after the next commit.
        assert!(files.room() < room + 100, "{} pages", files.room());
        drop(reader);
        files.close();
    }
}
