//! Owns the connections that read. They see only committed state and never block the writer.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::connect;
use super::failure::Failure;
use super::file::Files;
use crate::port::{Error, Result};

/// Concurrent queries. More would only take CPU time from the writer.
const READERS: usize = 4;

#[derive(Debug)]
pub(crate) struct Readers {
    files: Arc<Files>,
    idle: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub(crate) fn new(files: Arc<Files>) -> Self {
        Self { files, idle: Arc::default(), permits: Arc::new(Semaphore::new(READERS)) }
    }

    pub(crate) async fn run<T, F>(&self, query: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Failure> + Send + 'static,
    {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| self.files.is_closed())?;
        let idle = Arc::clone(&self.idle);
        let files = Arc::clone(&self.files);
        let read = move || {
            let _permit = permit;
            let popped = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let connection = match popped {
                Some(connection) => connection,
                None => connect::reader(files.path()).map_err(|failure| files.explain(failure))?,
            };
            let answer = query(&connection).map_err(|failure| files.explain(failure))?;
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            Ok(answer)
        };
        tokio::task::spawn_blocking(read)
            .await
            .map_err(|error| Error::Unavailable(format!("a query of the store was interrupted: {error}")))?
    }

    /// Waits for active reads.
    pub(crate) async fn close(&self) {
        let all = u32::try_from(READERS).expect("there are few readers");
        let waited = self.permits.acquire_many(all).await;
        self.permits.close();
        drop(waited);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
