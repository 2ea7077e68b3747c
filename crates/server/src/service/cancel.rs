//! Cancels a run.

use downbeat_core::Change;
use downbeat_core::ids::RunId;

use super::Service;
use crate::error::Error;

impl Service {
    /// Requests a run's end. Returns when the request is committed; the run's state shows when it has ended.
    pub async fn cancel(&self, run: &RunId, by: &str) -> Result<(), Error> {
        let change =
            Change::RunCancelRequested { run: run.clone(), by: by.to_owned(), at: self.parts.clock.now() };
        if self.commit_one(change).await?.is_ok() {
            return Ok(());
        }
        match self.parts.store.run(run).await? {
            None => Err(Error::NotFound(format!("run `{run}` does not exist"))),
            Some(stored) if stored.state.is_terminal() => {
                Err(Error::Conflict(format!("run `{run}` has ended: it is {}", stored.state)))
            }
            // It was requested before.
            Some(_) => Ok(()),
        }
    }
}
