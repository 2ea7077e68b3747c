//! `job list`, `show`, `delete`, `pause`, `resume`, `diff`, `rollback` and `history`.

use clap::Args;
use downbeat_api::request;
use downbeat_client::{Body, Client};
use jiff::Timestamp;
use serde_json::json;

use crate::exit::Result;
use crate::out::Out;
use crate::render::{applied_lines, difference_lines, history_page, job_page, job_table};

/// The stored job that a command works on.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Name of the job
    pub(super) name: String,
}

pub(super) async fn list(client: &Client, out: Out) -> Result {
    let jobs = client.all_pages(request::jobs().with_any("cluster", client.cluster())).await?;
    out.result(&json!({ "data": jobs }), || job_table(&jobs, Timestamp::now(), out.width()))
}

pub(super) async fn show(which: &Which, client: &Client, out: Out) -> Result {
    let job = client.ask(request::job(&which.name).with_any("cluster", client.cluster())).await?;
    out.result(&job, || job_page(&job, Timestamp::now(), out.width()))
}

pub(super) async fn delete(which: &Which, client: &Client, out: Out) -> Result {
    client.ask(request::delete_job(&which.name).with_any("cluster", client.cluster())).await?;
    out.result(&json!({"name": which.name, "deleted": true}), || {
        format!("job {} is deleted; its runs stay", which.name)
    })
}

pub(super) async fn pause(which: &Which, client: &Client, out: Out) -> Result {
    let request = request::pause_job(&which.name).with_any("cluster", client.cluster());
    let job = client.send(request, Body::Empty, None).await?;
    out.result(&job, || {
        format!("job {0} is paused; `downbeat job resume {0}` resumes its schedules", job.name)
    })
}

pub(super) async fn resume(which: &Which, client: &Client, out: Out) -> Result {
    let request = request::resume_job(&which.name).with_any("cluster", client.cluster());
    let job = client.send(request, Body::Empty, None).await?;
    out.result(&job, || match job.next.first() {
        Some(next) => format!("job {} is resumed; it starts next at {}", job.name, next.starts_at),
        None => format!("job {} is resumed", job.name),
    })
}

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// Name of the job
    name: String,
    /// The first version
    #[arg(value_name = "V1")]
    from: u64,
    /// The second version
    #[arg(value_name = "V2")]
    to: u64,
}

pub(super) async fn diff(args: &DiffArgs, client: &Client, out: Out) -> Result {
    let request = request::diff_job(&args.name).with("from", args.from).with("to", args.to);
    let diff = client.ask(request.with_any("cluster", client.cluster())).await?;
    out.result(&diff, || match diff.differences.as_slice() {
        [] => format!("versions {} and {} of job {} are the same", diff.from, diff.to, diff.name),
        differences => difference_lines(differences),
    })
}

#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    /// Name of the job
    name: String,
    /// The version whose definition becomes the next version
    version: u64,
}

pub(super) async fn roll_back(args: &RollbackArgs, client: &Client, out: Out) -> Result {
    let request = request::roll_back_job(&args.name).with_any("cluster", client.cluster());
    let body = Body::Json(json!({"version": args.version}).to_string());
    let applied = client.send(request, body, None).await?;
    out.result(&applied, || applied_lines(std::slice::from_ref(&applied), &[], false))
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// Name of the job
    name: String,
    /// At most this many runs, the newest first
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

pub(super) async fn history(args: &HistoryArgs, client: &Client, out: Out) -> Result {
    let job = client.ask(request::job(&args.name).with_any("cluster", client.cluster())).await?;
    let runs = request::runs().with("job", &job.name).with("cluster", job.cluster).with("limit", args.limit);
    let runs = client.ask(runs).await?;
    out.result(&runs, || history_page(&job.name, &runs.data, Timestamp::now(), out.width()))
}
