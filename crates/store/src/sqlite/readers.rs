//! Owns the connections that read. They see only committed state and never block the writer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use downbeat_core::limits;
use rusqlite::Connection;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::connect;
use super::failure::Failure;
use super::file::Files;
use crate::port::{Error, Result};

/// Concurrent reads of the server itself. More would only take CPU time from the writer.
const READERS: usize = 4;
/// How long one of them waits for its turn.
const OWN_TIMEOUT: Duration = Duration::from_secs(30);
/// Snapshots at once: each takes as long as its receiver.
const SNAPSHOTS: usize = 2;

/// A query looks after this many steps of SQLite's machine whether somebody still waits for it: some 0.1 ms.
const LOOK_EVERY: i32 = 10_000;

/// The connections for one purpose. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Readers {
    files: Arc<Files>,
    idle: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
    size: usize,
    /// How long a query waits for its turn.
    wait: Duration,
    /// How long a query may take; then it is interrupted.
    most: Option<Duration>,
}

/// Ends a query when it is dropped: nobody waits for its result.
#[derive(Default)]
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Readers {
    /// For the server itself.
    pub(crate) fn own(files: &Arc<Files>) -> Self {
        Self::new(files, READERS, OWN_TIMEOUT, None)
    }

    /// For users.
    pub(crate) fn views(files: &Arc<Files>) -> Self {
        let most = Duration::from_secs(limits::VIEW_S);
        Self::new(files, limits::VIEWS_AT_ONCE, most, Some(most))
    }

    pub(crate) fn snapshots(files: &Arc<Files>) -> Self {
        Self::new(files, SNAPSHOTS, OWN_TIMEOUT, None)
    }

    fn new(files: &Arc<Files>, size: usize, wait: Duration, most: Option<Duration>) -> Self {
        let (files, permits) = (Arc::clone(files), Arc::new(Semaphore::new(size)));
        Self { files, idle: Arc::default(), permits, size, wait, most }
    }

    pub(crate) async fn run<T, F>(&self, query: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    {
        let Ok(permit) = timeout(self.wait, Arc::clone(&self.permits).acquire_owned()).await else {
            let waited = self.wait.as_secs();
            return Err(Error::Unavailable(format!("other queries are slow: waited {waited} s for a turn")));
        };
        let permit = permit.map_err(|_| self.files.is_closed())?;
        let idle = Arc::clone(&self.idle);
        let files = Arc::clone(&self.files);
        let wanted = Wanted::default();
        let is_unwanted = Arc::clone(&wanted.0);
        let read = move || {
            let _permit = permit;
            let popped = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut connection = match popped {
                Some(connection) => connection,
                None => connect::reader(files.path()).map_err(|failure| files.explain(failure))?,
            };
            let explain = |failure| files.explain(failure);
            let look = move || is_unwanted.load(Ordering::Relaxed);
            connection.progress_handler(LOOK_EVERY, Some(look)).map_err(|error| explain(error.into()))?;
            let answer = query(&connection).map_err(explain)?;
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            Ok(answer)
        };
        let reading = tokio::task::spawn_blocking(read);
        let read = match self.most {
            Some(most) => timeout(most, reading).await.map_err(|_| {
                Error::Unavailable(format!("a query took longer than {} s and was ended", most.as_secs()))
            })?,
            None => reading.await,
        };
        read.map_err(|error| Error::Unavailable(format!("a query of the store was interrupted: {error}")))?
    }

    /// Waits for active reads.
    pub(crate) async fn close(&self) {
        let all = u32::try_from(self.size).expect("there are few readers");
        let waited = self.permits.acquire_many(all).await;
        self.permits.close();
        drop(waited);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDLESS: &str =
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT count(*) FROM n";

    fn query(connection: &Connection, sql: &str) -> Result<i64, Failure> {
        Ok(connection.query_row(sql, [], |row| row.get(0))?)
    }

    fn readers(dir: &tempfile::TempDir, wait_ms: u64, most_ms: u64) -> Readers {
        let path = dir.path().join("test.db");
        let writer = connect::writer(&path).unwrap();
        let files = Arc::new(Files::of(&path).unwrap());
        drop(writer);
        Readers::new(&files, 1, Duration::from_millis(wait_ms), Some(Duration::from_millis(most_ms)))
    }

    #[tokio::test]
    async fn a_query_that_takes_too_long_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let readers = readers(&dir, 60_000, 50);
        let error = readers.run(|connection| query(connection, ENDLESS)).await.unwrap_err();
        assert!(error.to_string().contains("took longer"), "{error}");
        assert_eq!(readers.run(|connection| query(connection, "SELECT 7")).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_query_that_nobody_waits_for_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let readers = readers(&dir, 60_000, 60_000);
        let (began, begun) = tokio::sync::oneshot::channel();
        let reading = tokio::spawn({
            let readers = readers.clone();
            let read = move |connection: &Connection| {
                let _ = began.send(());
                query(connection, ENDLESS)
            };
            async move { readers.run(read).await }
        });
        begun.await.unwrap();
        reading.abort();
        assert_eq!(readers.run(|connection| query(connection, "SELECT 7")).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_query_does_not_wait_forever_for_slow_ones() {
        let dir = tempfile::tempdir().unwrap();
        let readers = readers(&dir, 50, 60_000);
        let _permit = readers.permits.acquire().await.unwrap();
        let error = readers.run(|connection| query(connection, "SELECT 7")).await.unwrap_err();
        assert!(
            matches!(&error, Error::Unavailable(why) if why.contains("other queries are slow")),
            "{error}"
        );
    }
}
