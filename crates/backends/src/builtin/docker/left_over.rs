//! Owns the containers that this agent left on an engine: found by their mark, removed by force. Several agents may
//! share an engine, so containers without the mark are not touched.

use std::collections::HashMap;
use std::time::Duration;
use std::{fs, io};

use bollard::Docker as Client;
use bollard::errors::Error;
use bollard::models::ContainerSummary;
use bollard::query_parameters::{
    ListContainersOptionsBuilder, RemoveContainerOptionsBuilder, StopContainerOptionsBuilder,
};
use tokio::time::Instant;

use super::Docker;
use super::engine::{Engine, is_status};
use super::spec::{LABEL_ATTEMPT, LABEL_EXECUTION, LABEL_NODE};
use crate::backend::Identity;
use crate::private;

/// For a removal that has been started elsewhere.
const REMOVAL: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);

impl Docker {
    /// Removes the containers that an earlier run of the agent left, and returns their identities. Does not call an
    /// engine on which this agent never ran anything.
    pub async fn remove_left_over(&self) -> Result<Vec<Identity>, String> {
        let mut swept = self.swept.lock().await;
        if *swept {
            return Ok(Vec::new());
        }
        let found = match fs::read_to_string(&self.mark) {
            Ok(mark) => self.remove_all(mark.trim()).await.map_err(|error| self.engine.describe(&error))?,
            Err(_) => Vec::new(),
        };
        *swept = true;
        Ok(found)
    }

    /// Makes the next run search for leftover containers first.
    pub(super) async fn sweep_again(&self) {
        *self.swept.lock().await = false;
    }

    async fn remove_all(&self, mark: &str) -> Result<Vec<Identity>, Error> {
        let client = self.engine.connect()?;
        let filters = HashMap::from([("label".to_owned(), vec![format!("{LABEL_NODE}={mark}")])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let mut removed = Vec::new();
        for container in client.list_containers(Some(options)).await? {
            let identity = identity(&container);
            // Checked after the list was created: containers that started since are not in it.
            if identity.is_some_and(|identity| self.active.lock().contains(&identity)) {
                continue;
            }
            let Some(id) = container.id else { continue };
            remove(&client, &id).await?;
            removed.extend(identity);
        }
        Ok(removed)
    }

    /// Returns this agent's mark, created when it is first needed.
    pub(super) fn mark(&self) -> io::Result<String> {
        match fs::read_to_string(&self.mark) {
            Ok(mark) if !mark.trim().is_empty() => return Ok(mark.trim().to_owned()),
            _ => {}
        }
        let mark = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        let dir = self.mark.parent().unwrap_or(&self.mark);
        fs::create_dir_all(dir)?;
        private::write(&self.mark, &mark)?;
        // If a crash lost the mark, its containers would never be removed.
        fs::File::open(dir)?.sync_all()?;
        Ok(mark.trim().to_owned())
    }
}

fn identity(container: &ContainerSummary) -> Option<Identity> {
    let labels = container.labels.as_ref()?;
    Some(Identity {
        execution: labels.get(LABEL_EXECUTION)?.parse().ok()?,
        attempt: labels.get(LABEL_ATTEMPT)?.parse().ok()?,
    })
}

/// Kills and removes a container with its anonymous volumes. A missing container counts as removed.
pub(super) async fn remove(client: &Client, name: &str) -> Result<(), Error> {
    let deadline = Instant::now() + REMOVAL;
    loop {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        match client.remove_container(name, Some(options)).await {
            Ok(()) => return Ok(()),
            Err(error) if is_status(&error, 404) => return Ok(()),
            Err(error) if !is_status(&error, 409) || Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(LOOK).await,
        }
    }
}

/// Asks a container to end, kills it after the grace period and removes it. A missing container counts as ended.
pub(crate) async fn end_container(engine: &Engine, name: &str, grace: Duration) -> Result<(), String> {
    let ended = async {
        let client = engine.connect()?;
        // Engines support whole seconds only; less than one is zero.
        let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let options = StopContainerOptionsBuilder::default().t(seconds).build();
        // The removal ends it in any case.
        let _ = tokio::time::timeout(grace, client.stop_container(name, Some(options))).await;
        remove(&client, name).await
    };
    ended.await.map_err(|error: Error| engine.describe(&error))
}
