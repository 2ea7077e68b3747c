//! The backend `docker`: one container per execution, on Docker or Podman by its API. What runs in it is `attend`'s,
//! what it is made of `spec`'s.

mod attend;
mod engine;
mod image;
mod left_over;
mod spec;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::backend::BackendSchema;

use crate::backend::{Backend, Call, Finish, Identity};

pub(crate) use left_over::end_container;

pub use engine::Engine;

/// How long an engine may be away while its container runs: as long as a restart of it takes on a busy host.
const AWAY: Duration = Duration::from_secs(60);

/// Runs anything at all: an agent offers it only when told to.
#[derive(Debug)]
pub struct Docker {
    engine: Engine,
    mark: PathBuf,
    /// What this process runs at this moment: no left-overs.
    active: Mutex<HashSet<Identity>>,
    /// Whether what this agent left on the engine was removed since it may have left something.
    swept: tokio::sync::Mutex<bool>,
    away: Duration,
}

impl Docker {
    /// `data` is the agent's own directory: by a mark that is kept there it knows its containers from those of others.
    pub fn new(engine: Engine, data: &Path) -> Self {
        Self {
            engine,
            mark: data.join("containers"),
            active: Mutex::default(),
            swept: tokio::sync::Mutex::default(),
            away: AWAY,
        }
    }

    /// Waits this long for an engine that went away.
    #[must_use]
    pub fn waiting(self, away: Duration) -> Self {
        Self { away, ..self }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn active(&self) -> MutexGuard<'_, HashSet<Identity>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Backend for Docker {
    fn schema(&self) -> BackendSchema {
        super::schema("docker")
    }

    async fn run(&self, call: Call) -> Finish {
        if call.action != "run" {
            return Finish::failed(None, format!("backend `docker` has no action `{}`", call.action));
        }
        match spec::read(&call.params) {
            Ok(spec) => attend::run(self, &call, &spec).await,
            Err(error) => Finish::failed(None, error),
        }
    }
}
