//! Owns the one writing thread. It gets work as closures over a bounded queue and responds over one-shot channels; work
//! is done even if its caller is gone.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::checkpoint::{self, Pages};
use super::failure::Failure;
use super::file::Files;
use crate::port::{Error, Result};

/// The capacity of the queue: the journal has one commit in progress, the rest is heartbeats and output.
const QUEUE: usize = 64;

type Work = Box<dyn FnOnce(&mut Connection) + Send>;

/// The handle to the writing thread.
#[derive(Debug)]
pub(crate) struct Writer {
    files: Arc<Files>,
    queue: Mutex<Option<mpsc::Sender<Work>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts the thread. It runs until the handle is closed or dropped, and holds the lock until then.
    pub(crate) fn start(files: Arc<Files>, mut connection: Connection, lock: File) -> Result<Self> {
        let (queue, mut work) = mpsc::channel::<Work>(QUEUE);
        let checkpoints = checkpoint::start(files.path(), &mut connection, Pages::default())
            .map_err(|failure| files.explain(failure))?;
        let run = move || {
            while let Some(work) = work.blocking_recv() {
                work(&mut connection);
            }
            drop(connection);
            // A panic was logged, and nothing depends on the thread any more.
            let _ = checkpoints.join();
            drop(lock);
        };
        let thread = thread::Builder::new().name("sqlite-writer".to_owned()).spawn(run).map_err(|error| {
            Error::Unavailable(format!("cannot start the store's writing thread: {error}"))
        })?;
        Ok(Self { files, queue: Mutex::new(Some(queue)), thread: Mutex::new(Some(thread)) })
    }

    pub(crate) async fn run<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, Failure> + Send + 'static,
    {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (reply, answer) = oneshot::channel();
        let work: Work = Box::new(move |connection| {
            // An error means that the caller is gone; the write is still valid.
            let _ = reply.send(work(connection));
        });
        let closed = || self.files.is_closed();
        queue.ok_or_else(closed)?.send(work).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?.map_err(|failure| self.files.explain(failure))
    }

    /// Waits for the queued work, then ends the thread.
    pub(crate) async fn close(&self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!(path = %self.files.path().display(), "the store's writing thread panicked");
            }
        }
    }
}
