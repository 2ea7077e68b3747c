//! Owns stored jobs: apply, list, show, delete, pause, resume, run, compare and roll back.

use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use downbeat_api::{AppliedJob, Job, JobDiff, JobVersion, List, Run};
use downbeat_core::backend::Params;
use downbeat_core::job::{JobKey, JobRecord};
use downbeat_core::schedule::{self, Timetable};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::definition::{Body, TargetQuery};
use super::docs::JobRequest;
use super::extract::{Api, Flag, Id, Query};
use super::idempotency::{Scope, idempotency_key};
use super::paging::{Key, cut, page};
use super::payload::{Payload, object};
use super::problem::{Failure, HttpResult, Reply};
use super::run_view;
use super::runs::created;
use crate::caller::Caller;
use crate::jobs::JobState;
use crate::service::{Mode, Outcome, Service, differ};

/// The key of the list of jobs: cluster and name.
#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct ListKey(String, String);

impl Key for ListKey {
    const LIST: &'static str = "jobs";
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Only jobs of this cluster, by name or id.
    cluster: Option<String>,
    /// The number of rows; default 100, at most 1,000.
    limit: Option<u32>,
    /// How many rows to skip; at most 10,000.
    offset: Option<u64>,
    /// `next` of the previous page.
    cursor: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ClusterQuery {
    /// The cluster of the job, by name or id; default `default`.
    pub(super) cluster: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ShowQuery {
    /// The cluster of the job, by name or id; default `default`.
    cluster: Option<String>,
    /// Shows the definition of this version instead of the current one.
    version: Option<u64>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ApplyQuery {
    /// The cluster of a job that names none, by name or id; default `default`.
    cluster: Option<String>,
    /// `1` only returns what would change.
    #[serde(default)]
    #[param(value_type = Option<Flag>, inline)]
    dry_run: Flag,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DiffQuery {
    /// The cluster of the job, by name or id; default `default`.
    cluster: Option<String>,
    /// The first version.
    from: u64,
    /// The second version.
    to: u64,
}

impl ApplyQuery {
    fn mode(&self) -> Mode {
        if self.dry_run.is_on() { Mode::DryRun } else { Mode::Commit }
    }
}

fn shown(service: &Service, job: &JobRecord, table: Option<&Timetable>) -> Job {
    Job::of(job, table, service.cluster_name(job.key().cluster), service.now())
}

fn row(service: &Service, job: &JobState) -> Job {
    shown(service, &job.record, job.table.as_deref())
}

pub(super) async fn find(
    service: &Service,
    caller: &Caller,
    name: &str,
    cluster: Option<&str>,
) -> HttpResult<JobState> {
    let cluster = service.cluster(caller, cluster).await?;
    Ok(service.job(caller, cluster, name).await?)
}

/// Lists stored jobs, by cluster and name
#[utoipa::path(
    get, operation_id = "listJobs", path = "/jobs", tag = "jobs", params(ListQuery),
    responses((status = 200, description = "One page of jobs, without their definitions", body = List<Job>))
)]
pub(super) async fn list(Api(service, caller): Api, query: Query<ListQuery>) -> Reply<List<Job>> {
    let page = page(query.limit, query.offset, query.cursor.as_deref())?;
    let cluster = match &query.cluster {
        Some(cluster) => Some(service.cluster(&caller, Some(cluster)).await?),
        None => None,
    };
    let jobs = service.parts.jobs.list(cluster);
    let key = |job: &JobState| {
        let key = job.record.key();
        ListKey(key.cluster.to_string(), key.name.to_string())
    };
    let List { data, pagination } = cut(jobs, &page, key);
    // Only the times of the jobs on the page are computed.
    Ok(Json(List { data: data.iter().map(|job| row(&service, job)).collect(), pagination }))
}

/// Applies a job file: creates the job that it names, or makes it the next version
///
/// Equal definitions change nothing. Times of the former schedules that are due are started first.
#[utoipa::path(
    post, operation_id = "applyJob", path = "/jobs", tag = "jobs", params(ApplyQuery),
    request_body(content((JobRequest = "application/json"), (String = "application/yaml"))),
    responses(
        (status = 201, description = "The job that was created", body = AppliedJob),
        (status = 200, description = "The job that was changed, or is the same; or a dry run", body = AppliedJob),
        (status = 422, description = "The job is not valid; `errors` says why"),
    )
)]
pub(super) async fn apply(
    Api(service, caller): Api,
    query: Query<ApplyQuery>,
    body: Body,
) -> HttpResult<Response> {
    applied(&service, &caller, &query, body, None).await
}

/// Applies a job file whose job has this name
#[utoipa::path(
    put, operation_id = "putJob", path = "/jobs/{id}", tag = "jobs",
    params(("id" = String, Path, description = "The job's name"), ApplyQuery),
    request_body(content((JobRequest = "application/json"), (String = "application/yaml"))),
    responses(
        (status = 201, description = "The job that was created", body = AppliedJob),
        (status = 200, description = "The job that was changed, or is the same; or a dry run", body = AppliedJob),
        (status = 422, description = "The job is not valid; `errors` says why"),
    )
)]
pub(super) async fn put(
    Api(service, caller): Api,
    id: Id,
    query: Query<ApplyQuery>,
    body: Body,
) -> HttpResult<Response> {
    applied(&service, &caller, &query, body, Some(&id)).await
}

async fn applied(
    service: &Service,
    caller: &Caller,
    query: &ApplyQuery,
    body: Body,
    name: Option<&str>,
) -> HttpResult<Response> {
    let (submit, _) = body.read(service, &TargetQuery::of_cluster(query.cluster.clone())).await?;
    if submit.params.is_some() {
        return Err(rejected("a stored job has no values for its params; `POST /jobs/{id}/runs` takes them"));
    }
    if let Some(name) = name.filter(|name| submit.definition.name.as_deref() != Some(name)) {
        return Err(rejected(&format!("the job file does not name the job `{name}`")));
    }
    let applied = service.apply_job(caller, submit.definition, query.mode()).await?;
    let is_new = applied.outcome == Outcome::Created && query.mode() == Mode::Commit;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let location = format!("/api/v1/jobs/{}", applied.job.key().name);
    let shown = shown_applied(service, applied);
    Ok((status, [(header::LOCATION, location)], Json(shown)).into_response())
}

fn shown_applied(service: &Service, applied: crate::service::AppliedJob) -> AppliedJob {
    let crate::service::AppliedJob { job, outcome, differences } = applied;
    let name = schedule::key(Some(&service.cluster_name(job.key().cluster)), &job.key().name);
    let table = Timetable::new(name, &job.current.definition.schedule).ok();
    let outcome = match outcome {
        Outcome::Created => "created",
        Outcome::Changed => "changed",
        Outcome::Unchanged => "unchanged",
    };
    AppliedJob {
        outcome: outcome.to_owned(),
        job: shown(service, &job, table.as_ref()),
        differences: differences.into_iter().map(Into::into).collect(),
    }
}

fn rejected(detail: &str) -> Failure {
    Failure::new(StatusCode::UNPROCESSABLE_ENTITY, downbeat_api::code::REJECTED, detail)
}

/// Shows a stored job, with its definition, its versions and the next times
#[utoipa::path(
    get, operation_id = "showJob", path = "/jobs/{id}", tag = "jobs",
    params(("id" = String, Path, description = "The job's name"), ShowQuery),
    responses((status = 200, description = "The job", body = Job))
)]
pub(super) async fn show(Api(service, caller): Api, id: Id, query: Query<ShowQuery>) -> Reply<Job> {
    let job = find(&service, &caller, &id, query.cluster.as_deref()).await?;
    let key = job.record.key();
    let mut shown = match query.version.filter(|version| *version != job.record.current.version) {
        Some(version) => row(&service, &job).with_definition(&service.job_version(key, version).await?),
        None => row(&service, &job).with_definition(&job.record.current),
    };
    let versions = service.job_versions(key).await?.into_iter();
    let version =
        |one: downbeat_store::JobVersionBrief| JobVersion { version: one.version, at: one.at, by: one.by };
    shown.versions = versions.map(version).collect();
    Ok(Json(shown))
}

/// Deletes a stored job; its runs stay, and those that run go on
#[utoipa::path(
    delete, operation_id = "deleteJob", path = "/jobs/{id}", tag = "jobs",
    params(("id" = String, Path, description = "The job's name"), ClusterQuery),
    responses((status = 204, description = "The job is deleted"))
)]
pub(super) async fn delete(
    Api(service, caller): Api,
    id: Id,
    query: Query<ClusterQuery>,
) -> HttpResult<StatusCode> {
    let job = find(&service, &caller, &id, query.cluster.as_deref()).await?;
    service.delete_job(&caller, job.record.key()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pauses the schedules of a job; times until it is resumed are skipped
#[utoipa::path(
    post, operation_id = "pauseJob", path = "/jobs/{id}/pause", tag = "jobs",
    params(("id" = String, Path, description = "The job's name"), ClusterQuery),
    responses(
        (status = 200, description = "The job, which is paused", body = Job),
        (status = 409, description = "The job is already paused"),
    )
)]
pub(super) async fn pause(Api(service, caller): Api, id: Id, query: Query<ClusterQuery>) -> Reply<Job> {
    let job = find(&service, &caller, &id, query.cluster.as_deref()).await?;
    Ok(Json(row(&service, &service.pause_job(&caller, job.record.key(), true).await?)))
}

/// Resumes the schedules of a job
#[utoipa::path(
    post, operation_id = "resumeJob", path = "/jobs/{id}/resume", tag = "jobs",
    params(("id" = String, Path, description = "The job's name"), ClusterQuery),
    responses(
        (status = 200, description = "The job, whose schedules start it again", body = Job),
        (status = 409, description = "The job is not paused"),
    )
)]
pub(super) async fn resume(Api(service, caller): Api, id: Id, query: Query<ClusterQuery>) -> Reply<Job> {
    let job = find(&service, &caller, &id, query.cluster.as_deref()).await?;
    Ok(Json(row(&service, &service.pause_job(&caller, job.record.key(), false).await?)))
}

/// The values of a run of a stored job.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RunBody {
    /// Values for the job's params; the others get their defaults.
    #[schema(value_type = Option<Object>)]
    params: Params,
    /// Whether the run ignores the cache.
    no_cache: bool,
}

/// Starts a stored job now, whether it is paused or not
#[utoipa::path(
    post, operation_id = "runJob", path = "/jobs/{id}/runs", tag = "jobs",
    params(
        ("id" = String, Path, description = "The job's name"), ClusterQuery,
        ("Idempotency-Key" = Option<String>, Header, description = "A second request with the same key returns the first run"),
    ),
    request_body(content = Option<RunBody>),
    responses(
        (status = 201, description = "The run that was created", body = Run),
        (status = 200, description = "The first run of this idempotency key", body = Run),
    )
)]
pub(super) async fn run(
    Api(service, caller): Api,
    id: Id,
    query: Query<ClusterQuery>,
    headers: HeaderMap,
    Payload(body): Payload,
) -> HttpResult<Response> {
    let cluster = query.cluster.as_deref().map(str::as_bytes);
    let key = idempotency_key(&headers, Scope::Job, &[Some(id.as_bytes()), cluster, Some(&body)])?;
    let RunBody { params, no_cache } = if body.is_empty() { RunBody::default() } else { object(&body)? };
    let submitted = match service.repeated(key.as_ref()).await? {
        Some(repeated) => repeated,
        None => {
            let job = find(&service, &caller, &id, query.cluster.as_deref()).await?;
            service.run_job(&caller, &job.record, &params, no_cache, key).await?
        }
    };
    let shown = if submitted.created {
        run_view::new_run(&service, &submitted.run)
    } else {
        run_view::summary(&service, &submitted.run).await?
    };
    Ok(created(submitted.created, shown))
}

/// Compares two versions of a job
#[utoipa::path(
    get, operation_id = "diffJob", path = "/jobs/{id}/diff", tag = "jobs",
    params(("id" = String, Path, description = "The job's name"), DiffQuery),
    responses((status = 200, description = "The values in which the versions differ", body = JobDiff))
)]
pub(super) async fn diff(Api(service, caller): Api, id: Id, query: Query<DiffQuery>) -> Reply<JobDiff> {
    let job = find(&service, &caller, &id, query.cluster.as_deref()).await?;
    let key: &JobKey = job.record.key();
    let (from, to) = (query.from, query.to);
    let (before, after) = (service.job_version(key, from).await?, service.job_version(key, to).await?);
    let differences = differ(Some(&before.definition), &after.definition);
    let differences = differences.into_iter().map(Into::into).collect();
    Ok(Json(JobDiff { name: key.name.to_string(), from, to, differences }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RollbackBody {
    version: u64,
}

/// Makes an earlier version of a job the next one
#[utoipa::path(
    post, operation_id = "rollBackJob", path = "/jobs/{id}/rollback", tag = "jobs",
    params(("id" = String, Path, description = "The job's name"), ClusterQuery), request_body = RollbackBody,
    responses((status = 200, description = "The job with its new version", body = AppliedJob))
)]
pub(super) async fn roll_back(
    Api(service, caller): Api,
    id: Id,
    query: Query<ClusterQuery>,
    Payload(body): Payload,
) -> Reply<AppliedJob> {
    let RollbackBody { version } = object(&body)?;
    let job = find(&service, &caller, &id, query.cluster.as_deref()).await?;
    let key = job.record.key();
    let mut definition = (*service.job_version(key, version).await?.definition).clone();
    definition.cluster = Some(key.cluster.to_string());
    let applied = service.apply_job(&caller, definition, Mode::Commit).await?;
    Ok(Json(shown_applied(&service, applied)))
}
