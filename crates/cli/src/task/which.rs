//! Resolves the TASK argument: the name of a standing task of the cluster, or an id.

use clap::Args;
use downbeat_api::{StandingTask, request};
use downbeat_client::Client;
use downbeat_core::ids::TaskId;
use downbeat_core::nearest::nearest;
use downbeat_core::shown::shown;

use crate::exit::{Code, Failure, Result};

/// The standing task that a command works on.
#[derive(Clone, Debug, Args)]
pub(crate) struct Which {
    /// Name or id
    #[arg(value_name = "TASK")]
    pub(super) task: String,
}

impl Which {
    pub(super) async fn resolve(&self, client: &Client) -> Result<StandingTask> {
        // A task of another cluster may be meant: ids are unique.
        if let Ok(id) = self.task.parse::<TaskId>() {
            return Ok(client.ask(request::task(id)).await?);
        }
        let tasks = all(client).await?;
        let place = find(&self.task, &tasks, cluster(client))?;
        tasks.into_iter().nth(place).ok_or_else(|| Failure::bug("the task that was found is gone"))
    }
}

/// A standing task of which executions may be left; it may be deleted.
pub(super) struct Found {
    pub(super) id: TaskId,
    /// Its id, if it is deleted.
    pub(super) name: String,
    /// The cluster in which to look up nodes.
    pub(super) cluster: String,
}

impl Which {
    /// Like `resolve`, but also finds a deleted task, by its id.
    pub(super) async fn find_any(&self, client: &Client) -> Result<Found> {
        match (self.resolve(client).await, self.task.parse::<TaskId>()) {
            (Ok(task), _) => Ok(Found { id: task.id, name: task.name, cluster: task.cluster_id.to_string() }),
            (Err(failure), Ok(id)) if failure.code == Code::NotFound => {
                Ok(Found { id, name: id.to_string(), cluster: cluster(client).to_owned() })
            }
            (Err(failure), _) => Err(failure),
        }
    }
}

/// Returns the cluster of a command.
pub(super) fn cluster(client: &Client) -> &str {
    client.cluster().unwrap_or("default")
}

/// Returns the standing tasks of the cluster, in their order.
pub(super) async fn all(client: &Client) -> Result<Vec<StandingTask>> {
    Ok(client.all_pages(request::cluster_tasks(cluster(client))).await?)
}

/// Returns the place of a task in the list, from 0.
pub(super) fn find(text: &str, tasks: &[StandingTask], cluster: &str) -> Result<usize> {
    let id = text.parse::<TaskId>().ok();
    let is_meant = |task: &StandingTask| task.name == text || Some(task.id) == id;
    if let Some(place) = tasks.iter().position(is_meant) {
        return Ok(place);
    }
    let advice = match nearest(text, tasks.iter().map(|task| task.name.as_str())) {
        Some(near) => format!("did you mean `{}`?", shown(near)),
        None => "`downbeat task list` shows them".to_owned(),
    };
    Err(Failure::not_found(format!(
        "cluster `{}` has no standing task `{}`; {advice}",
        shown(cluster),
        shown(text)
    )))
}
