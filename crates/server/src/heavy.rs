//! Runs work that needs much processor time: a few at once, on separate threads, with a short queue.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::limits;
use downbeat_core::run::RunRecord;
use downbeat_core::spec::Definition;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::{Error, Result};

/// How long work waits for a thread.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns whether work on this many instances is heavy. For less, the hand-over to another thread would cost more.
pub(crate) fn is_heavy(instances: u64) -> bool {
    instances > limits::PLAN_SMALL_INSTANCES as u64
}

/// Returns whether it is heavy to compile the plan of a definition on this many nodes. Items of `for_each` hardly matter
/// for it.
pub(crate) fn is_heavy_plan(definition: &Definition, nodes: usize) -> bool {
    is_heavy(u64::from(definition.step_count()).saturating_mul(nodes.max(1) as u64))
}

/// Returns whether it is heavy to compile the plan of a stored run.
pub(crate) fn is_heavy_run(run: &RunRecord) -> bool {
    is_heavy_plan(&run.definition, run.resolved.nodes.len())
}

/// Limits heavy work; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct HeavyWork {
    /// One permit for each running or waiting work.
    room: Arc<Semaphore>,
    threads: Arc<Semaphore>,
}

impl HeavyWork {
    /// For plans and job files.
    pub(crate) fn of_plans() -> Self {
        Self::new(limits::PLANS_AT_ONCE, limits::PLANS_WAITING)
    }

    /// For views of large runs. They keep their places while they read the store, which may be slow: plans do not wait
    /// for them.
    pub(crate) fn of_views() -> Self {
        Self::new(limits::LARGE_VIEWS_AT_ONCE, limits::PLANS_WAITING)
    }

    fn new(at_once: usize, waiting: usize) -> Self {
        Self { room: Arc::new(Semaphore::new(at_once + waiting)), threads: Arc::new(Semaphore::new(at_once)) }
    }

    /// Runs the work on its own thread. It keeps its permits until it ends, even if its caller has gone.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        self.place().await?.run(work).await
    }

    /// Waits for a place: for work whose data take much memory, and are read when it may run.
    pub(crate) async fn place(&self) -> Result<Place> {
        let busy = || Error::Busy("the server is busy with other large plans and runs; try again".to_owned());
        let room = Arc::clone(&self.room).try_acquire_owned().map_err(|_| busy())?;
        let thread =
            timeout(PATIENCE, Arc::clone(&self.threads).acquire_owned()).await.map_err(|_| busy())?;
        Ok(Place { _room: room, _thread: thread.expect("it is never closed") })
    }

    /// Like `run`, for work of the server itself: it is never refused, and waits for a thread as long as necessary.
    pub(crate) async fn run_own<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let thread = Arc::clone(&self.threads).acquire_owned().await.expect("it is never closed");
        on_thread(thread, work).await
    }

    /// Runs work of the server itself: like `run_own` if it is heavy, otherwise here.
    pub(crate) async fn run_own_if<T: Send + 'static>(
        &self,
        is_heavy: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        if is_heavy { self.run_own(work).await } else { Ok(work()) }
    }

    /// Returns how much more work is accepted, to run or to wait.
    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.room.available_permits()
    }
}

/// The permits of work that may run.
#[derive(Debug)]
pub(crate) struct Place {
    _room: OwnedSemaphorePermit,
    _thread: OwnedSemaphorePermit,
}

impl Place {
    pub(crate) async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        on_thread(self, work).await
    }
}

async fn on_thread<P: Send + 'static, T: Send + 'static>(
    permits: P,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(move || {
        let _kept = permits;
        work()
    });
    done.await.map_err(|error| {
        Error::Bug(format!("compiling a plan, a definition or a view, or restoring a run panicked: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_few_run_a_few_wait_and_the_rest_is_refused() {
        let heavy = HeavyWork::new(1, 1);
        let (begun, has_begun) = mpsc::channel();
        let (finish, held) = mpsc::channel::<()>();
        let first = tokio::spawn({
            let heavy = heavy.clone();
            async move {
                let work = move || {
                    begun.send(()).unwrap();
                    held.recv().unwrap();
                    1
                };
                heavy.run(work).await
            }
        });
        tokio::task::spawn_blocking(move || has_begun.recv().unwrap()).await.unwrap();
        let second = tokio::spawn({
            let heavy = heavy.clone();
            async move { heavy.run(|| 2).await }
        });
        while heavy.room.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(!second.is_finished());
        assert!(matches!(heavy.run(|| 3).await, Err(Error::Busy(_))));
        finish.send(()).unwrap();
        assert_eq!(first.await.unwrap(), Ok(1));
        assert_eq!(second.await.unwrap(), Ok(2));
        assert_eq!(heavy.run(|| 4).await, Ok(4));
    }

    #[tokio::test(start_paused = true)]
    async fn no_caller_waits_forever_but_the_server_itself_does() {
        let heavy = HeavyWork::new(1, 0);
        let taken = Arc::clone(&heavy.threads).acquire_owned().await.unwrap();
        let own = tokio::spawn({
            let heavy = heavy.clone();
            async move { heavy.run_own(|| 1).await }
        });
        assert!(matches!(heavy.run(|| ()).await, Err(Error::Busy(_))));
        assert!(!own.is_finished());
        drop(taken);
        assert_eq!(own.await.unwrap(), Ok(1));
    }

    #[tokio::test]
    async fn a_place_is_kept_while_the_work_goes_on_though_nobody_waits_for_it() {
        let heavy = HeavyWork::new(1, 0);
        let (finish, held) = mpsc::channel::<()>();
        let (begun, has_begun) = mpsc::channel();
        let work = heavy.clone();
        let asked = tokio::spawn(async move {
            work.run(move || {
                begun.send(()).unwrap();
                held.recv().unwrap();
            })
            .await
        });
        tokio::task::spawn_blocking(move || has_begun.recv().unwrap()).await.unwrap();
        asked.abort();
        assert!(asked.await.unwrap_err().is_cancelled());
        assert!(matches!(heavy.run(|| ()).await, Err(Error::Busy(_))));
        finish.send(()).unwrap();
        while heavy.room.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(heavy.run(|| ()).await, Ok(()));
    }
}
