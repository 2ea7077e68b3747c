//! The backend `docker`: one container per execution, on Docker or Podman through its API. `attend` runs it, `spec`
//! describes it.

mod attend;
mod engine;
mod image;
mod left_over;
mod spec;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::backend::BackendSchema;
use parking_lot::Mutex;
use serde_json::Value;

use crate::backend::{Backend, Call, Finish, Identity};
use crate::declared::{Key, Refused};

pub(crate) use left_over::end_container;

pub use engine::Engine;

/// How long an engine may be unreachable while its container runs: enough for its restart on a busy host.
const AWAY: Duration = Duration::from_secs(60);
/// How long the start of an agent waits for a slow engine. Leftover containers are then removed before the first new
/// one is created.
const SWEEP_WAIT: Duration = Duration::from_secs(30);

/// Reads `[agent.backend.docker]`: `socket` is the engine's address, unix:///PATH or tcp://HOST:PORT.
pub(super) fn settings(key: &Key, value: &Value) -> Result<Option<Engine>, Refused> {
    let settings = key.map(value)?;
    key.known(settings, &["socket"])?;
    let socket = key.text(settings, "socket")?.filter(|socket| !socket.is_empty());
    let engine = socket.map(|socket| Engine::read(&socket)).transpose();
    engine.map_err(|reason| key.field("socket").refuse(reason))
}

/// One container per execution.
#[derive(Debug)]
pub struct Docker {
    engine: Engine,
    mark: PathBuf,
    /// Containers that this process runs now: these are not leftovers.
    active: Mutex<HashSet<Identity>>,
    /// Leftovers of this agent were removed since it may last have left any.
    swept: tokio::sync::Mutex<bool>,
    away: Duration,
}

impl Docker {
    /// `data` is the agent's data directory: a mark stored there distinguishes its containers from those of others.
    pub fn new(engine: Engine, data: &Path) -> Self {
        Self {
            engine,
            mark: data.join("containers"),
            active: Mutex::default(),
            swept: tokio::sync::Mutex::default(),
            away: AWAY,
        }
    }

    /// Sets how long to wait for an engine that cannot be reached.
    #[must_use]
    pub fn waiting(self, away: Duration) -> Self {
        Self { away, ..self }
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

    async fn sweep(&self) -> Vec<Identity> {
        let error = match tokio::time::timeout(SWEEP_WAIT, self.remove_left_over()).await {
            Ok(Ok(found)) => return found,
            Ok(Err(error)) => error,
            Err(_) => format!("the container engine at {} does not respond in time", self.engine),
        };
        tracing::warn!(%error, "cannot search for leftover containers; trying again before the next one starts");
        Vec::new()
    }
}
