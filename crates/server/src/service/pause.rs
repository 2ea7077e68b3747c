//! Pauses a run, and resumes it.

use downbeat_core::ids::RunId;
use downbeat_core::{Change, Refusal};

use super::Service;
use crate::error::Error;

impl Service {
    /// Starts nothing more of a run until it is resumed. Executions that run go on to their end.
    pub async fn pause(&self, run: &RunId, by: &str) -> Result<(), Error> {
        self.set_paused(run, true, by).await
    }

    /// Continues a run that was paused.
    pub async fn resume(&self, run: &RunId, by: &str) -> Result<(), Error> {
        self.set_paused(run, false, by).await
    }

    async fn set_paused(&self, run: &RunId, paused: bool, by: &str) -> Result<(), Error> {
        let at = self.parts.clock.now();
        let change = Change::RunPauseSet { run: run.clone(), paused, by: by.to_owned(), at };
        match self.commit_one(change).await? {
            Ok(()) => Ok(()),
            Err(Refusal::NotKnownToAll) => Err(Error::Unavailable(
                "an older server shares the store, which knows nothing of pauses; upgrade all servers"
                    .to_owned(),
            )),
            Err(_) => match self.parts.store.run(run).await? {
                None => Err(Error::NotFound(format!("run `{run}` does not exist"))),
                Some(stored) if stored.state.is_terminal() => {
                    Err(Error::Conflict(format!("run `{run}` has ended: it is {}", stored.state)))
                }
                Some(_) if paused => Err(Error::Conflict(format!("run `{run}` is paused already"))),
                Some(_) => Err(Error::Conflict(format!("run `{run}` is not paused"))),
            },
        }
    }
}
