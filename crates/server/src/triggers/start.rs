//! Starts the run of a trigger.

use std::sync::Arc;

use downbeat_core::ids::RunId;
use downbeat_core::job::JobKey;
use downbeat_core::spec::Trigger;
use downbeat_core::trigger::{self, Happened, What, caller_of, depth_of};
use downbeat_core::{Change, Refusal, limits};
use tracing::{Instrument as _, debug, info, warn};

use crate::caller::Caller;
use crate::error::{Class, Error};
use crate::runs::{Launch, launch};
use crate::service::Service;

/// A job that an event starts.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) job: JobKey,
    pub(super) happened: Arc<Happened>,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The run exists, or will never exist.
    Done,
    /// It could not be created now.
    Later,
}

/// Whether a start that is not possible now is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Try {
    Early,
    Last,
}

/// Why there is no run.
enum NotStarted {
    /// Nothing was to start.
    Nothing,
    Refused(String),
    Later(String),
}

impl From<Error> for NotStarted {
    fn from(error: Error) -> Self {
        match error.class() {
            Class::Rejected | Class::Unproven | Class::Conflict | Class::NotFound => {
                NotStarted::Refused(error.to_string())
            }
            Class::TooMany | Class::Unavailable | Class::Busy | Class::Bug => {
                NotStarted::Later(error.to_string())
            }
        }
    }
}

/// Starts the run of a trigger, unless it exists. A refusal is recorded.
pub(super) async fn start(service: &Service, id: &RunId, pending: &Pending, which: Try) -> Outcome {
    let Some(job) = service.parts.jobs.get(&pending.job) else { return Outcome::Done };
    let definition = &job.record.current.definition;
    let starts = pending.happened.starts(&pending.job.name, &definition.triggers);
    // The job has changed, or was paused.
    let Some(trigger) = starts.filter(|_| job.record.live.paused_at.is_none()) else { return Outcome::Done };
    let by = caller_of(trigger);
    let version = job.record.current.version;
    let refused = match try_start(service, id, pending, definition, trigger, version).await {
        Ok(()) => {
            info!(run = %id, job = %pending.job.name, by, "a trigger started a run");
            return Outcome::Done;
        }
        Err(NotStarted::Nothing) => return Outcome::Done,
        Err(NotStarted::Later(error)) if which == Try::Early => {
            warn!(run = %id, job = %pending.job.name, by, error, "a trigger cannot start its run yet");
            return Outcome::Later;
        }
        Err(NotStarted::Refused(error) | NotStarted::Later(error)) => error,
    };
    warn!(job = %pending.job.name, by, error = refused, "a trigger could not start its run");
    let (job, run, at) = (pending.job.clone(), id.clone(), service.now());
    let change = Change::JobNotTriggered { job, run, by, error: refused, at };
    match service.parts.journal.commit_one(change).await {
        Ok(_) => Outcome::Done,
        Err(error) => {
            warn!(%error, "cannot record that a trigger did not start its job");
            Outcome::Later
        }
    }
}

async fn try_start(
    service: &Service,
    id: &RunId,
    Pending { job: key, happened }: &Pending,
    definition: &Arc<downbeat_core::spec::Definition>,
    trigger: &Trigger,
    version: u64,
) -> Result<(), NotStarted> {
    let depth = 1 + depth_before(service, happened, trigger).await?;
    if depth > limits::TRIGGER_DEPTH {
        let most = limits::TRIGGER_DEPTH;
        return Err(NotStarted::Refused(format!(
            "{most} runs have started each other, one after the other; the jobs seem to form a circle"
        )));
    }
    let params = trigger::params(definition, trigger, &happened.facts(), None);
    let params = params.map_err(|problems| {
        NotStarted::Refused(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    })?;
    let plan = service.compile(key.cluster, Arc::clone(definition), &params, Arc::new).await?;
    let caller = Caller::of(caller_of(trigger));
    let mut made = service.new_run(&caller, key.cluster, &plan, params, None);
    made.id = id.clone();
    made.job_version = Some(version);
    made.idempotency_key = Some(happened.key(key, depth));
    let (parts, new) =
        (service.parts.clone(), Launch { made, plan, taken: Vec::new(), firing: None, derived: true });
    // On its own: a committed run needs an actor, also if the server stops meanwhile.
    let launched = tokio::spawn(async move { launch(&parts, new).await }.in_current_span()).await;
    match launched {
        Ok(Ok(Ok(_))) => Ok(()),
        Ok(Ok(Err(refusal @ (Refusal::RunExists(_) | Refusal::KeyInUse(_) | Refusal::NotFound)))) => {
            debug!(run = %id, %refusal, "another server started the run, or its cluster is gone");
            Err(NotStarted::Nothing)
        }
        Ok(Ok(Err(refusal))) => Err(NotStarted::Later(refusal.to_string())),
        Ok(Err(error)) => Err(error.into()),
        Err(error) => Err(NotStarted::Later(format!("starting the run panicked: {error}"))),
    }
}

/// Returns how many runs started each other before this one.
async fn depth_before(service: &Service, happened: &Happened, trigger: &Trigger) -> Result<u32, NotStarted> {
    let What::RunEnded { run, .. } = &happened.what else { return Ok(0) };
    let source = service.parts.store.run(run).await.map_err(Error::from)?;
    // The run was removed: then nothing is known of it.
    let Some(source) = source else { return Err(NotStarted::Nothing) };
    // A run of a file that has the name of the job is not a run of the job.
    if matches!(trigger, Trigger::Job(_)) && source.job_version.is_none() {
        return Err(NotStarted::Nothing);
    }
    Ok(depth_of(source.idempotency_key.as_deref()))
}
