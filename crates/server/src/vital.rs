//! Owns the supervision of a server's vital tasks: without one of them a server would keep its runs and do
//! nothing for them. If one ends by itself or panics, the server is not ready, and its process exits.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// Supervises tasks; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Vital {
    failed: CancellationToken,
    first: Arc<OnceLock<VitalTaskEnded>>,
}

/// A vital task ended although the server was not stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("vital task `{task}` {how}")]
pub struct VitalTaskEnded {
    pub task: &'static str,
    how: &'static str,
}

impl Vital {
    /// Starts a task that may only end after `stop` is cancelled. It logs in the current span.
    pub(crate) fn spawn(
        &self,
        task: &'static str,
        stop: &CancellationToken,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let (vital, stop) = (self.clone(), stop.clone());
        let supervised = async move {
            let how = match AssertUnwindSafe(work).catch_unwind().await {
                Ok(()) if stop.is_cancelled() => return,
                Ok(()) => "ended by itself",
                Err(_) => "panicked",
            };
            // Others may fail as a consequence: the first one is the cause.
            let _ = vital.first.set(VitalTaskEnded { task, how });
            vital.failed.cancel();
        };
        tokio::spawn(supervised.in_current_span())
    }

    /// Supervises a task that was started elsewhere.
    pub(crate) fn watch(
        &self,
        task: &'static str,
        stop: &CancellationToken,
        started: JoinHandle<()>,
    ) -> JoinHandle<()> {
        let joined = async {
            if let Err(error) = started.await
                && let Ok(panic) = error.try_into_panic()
            {
                resume_unwind(panic);
            }
        };
        self.spawn(task, stop, joined)
    }

    /// Returns the first vital task that ended.
    pub(crate) fn failure(&self) -> Option<&VitalTaskEnded> {
        self.first.get()
    }

    /// Waits until a vital task ends.
    pub(crate) async fn failed(&self) -> VitalTaskEnded {
        self.failed.cancelled().await;
        let unknown = VitalTaskEnded { task: "unknown", how: "ended by itself" };
        self.first.get().cloned().unwrap_or(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_or_ends_by_itself_is_the_failure_and_the_first_one_counts() {
        let (vital, stop) = (Vital::default(), CancellationToken::new());
        assert_eq!(vital.failure(), None);
        vital.spawn("sweep", &stop, async { panic!("on purpose") }).await.unwrap();
        assert_eq!(vital.failed().await.to_string(), "vital task `sweep` panicked");
        vital.spawn("journal", &stop, async {}).await.unwrap();
        assert_eq!(vital.failed().await.task, "sweep");
        let vital = Vital::default();
        vital.watch("journal", &stop, tokio::spawn(async {})).await.unwrap();
        assert_eq!(vital.failed().await.to_string(), "vital task `journal` ended by itself");
        let vital = Vital::default();
        vital.watch("feed", &stop, tokio::spawn(async { panic!("on purpose") })).await.unwrap();
        assert_eq!(vital.failed().await.to_string(), "vital task `feed` panicked");
    }

    #[tokio::test]
    async fn a_task_that_ends_because_the_server_stops_has_not_failed() {
        let (vital, stop) = (Vital::default(), CancellationToken::new());
        let task = vital.spawn("sweep", &stop, stop.clone().cancelled_owned());
        stop.cancel();
        task.await.unwrap();
        assert_eq!(vital.failure(), None);
    }
}
