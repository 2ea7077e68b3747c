//! Cancels a run.

use downbeat_core::Change;
use downbeat_core::ids::RunId;

use super::Service;
use crate::caller::Caller;
use crate::error::Error;

impl Service {
    /// Requests a run's end. Returns when the request is committed; the run's state shows when it has ended.
    pub async fn cancel(&self, caller: &Caller, run: &RunId) -> Result<(), Error> {
        let (by, at) = (caller.name().to_owned(), self.parts.clock.now());
        match self.commit_one(Change::RunCancelRequested { run: run.clone(), by, at }).await? {
            Ok(()) => Ok(()),
            // If the run is open, its end was requested before.
            Err(_) => self.open_run(caller, run).await.map(drop),
        }
    }
}
