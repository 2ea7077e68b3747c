//! Owns the response to a request of an HTTP trigger.

use downbeat_core::ids::RunId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The run that a trigger started. It has no more than its sender has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HookReply {
    pub run: String,
    /// The path of the run in the REST API.
    pub url: String,
    /// False: the same request was received before, and started this run.
    pub created: bool,
    /// The same for people: Slack shows it.
    pub text: String,
}

impl HookReply {
    pub fn of(run: &RunId, job: &str, created: bool) -> Self {
        let text = if created {
            format!("started run {run} of job {job}")
        } else {
            format!("the request was received before; it started run {run} of job {job}")
        };
        Self { run: run.to_string(), url: format!("/api/v1/runs/{run}"), created, text }
    }
}
