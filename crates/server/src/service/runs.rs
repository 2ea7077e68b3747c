//! Cancels a run, pauses it, and resumes it.

use downbeat_core::ids::RunId;
use downbeat_core::{Change, Refusal};

use super::Service;
use crate::caller::Caller;
use crate::error::{Conflict, Error, Result};

impl Service {
    /// Requests a run's end. Returns when the request is committed; the run's state shows when it has ended.
    pub async fn cancel(&self, caller: &Caller, run: &RunId) -> Result<()> {
        let (by, at) = (caller.name().to_owned(), self.now());
        match self.commit_one(Change::RunCancelRequested { run: run.clone(), by, at }).await? {
            Ok(()) => Ok(()),
            // If the run is open, its end was requested before.
            Err(_) => self.open_run(caller, run).await.map(drop),
        }
    }

    /// Starts nothing more of a run until it is resumed. Running executions finish.
    pub async fn pause(&self, caller: &Caller, run: &RunId) -> Result<()> {
        self.set_paused(caller, run, true).await
    }

    pub async fn resume(&self, caller: &Caller, run: &RunId) -> Result<()> {
        self.set_paused(caller, run, false).await
    }

    async fn set_paused(&self, caller: &Caller, id: &RunId, paused: bool) -> Result<()> {
        let (by, at) = (caller.name().to_owned(), self.now());
        match self.commit_one(Change::RunPauseSet { run: id.clone(), paused, by, at }).await? {
            Ok(()) => Ok(()),
            Err(Refusal::NotKnownToAll) => Err(Error::OlderServer("pauses")),
            Err(_) => {
                self.open_run(caller, id).await?;
                let id = id.clone();
                Err(if paused { Conflict::RunPaused(id) } else { Conflict::RunNotPaused(id) }.into())
            }
        }
    }
}
