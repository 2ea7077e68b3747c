//! Submits a run.

use std::sync::Arc;

use downbeat_core::Refusal;
use downbeat_core::backend::Params;
use downbeat_core::ids::{ClusterId, RunId};
use downbeat_core::plan::Plan;
use downbeat_core::run::{RunMade, RunRecord};
use downbeat_core::spec::{Definition, resolve_params};
use tracing::Instrument;

use super::Service;
use super::patience::{change_in_time, read_in_time};
use crate::caller::Caller;
use crate::error::{Conflict, Error, Result};
use crate::runs::{Launch, launch};

#[derive(Clone, Debug)]
pub struct Submit {
    pub definition: Definition,
    /// Values for the job's params; the others get their defaults. `None` if the definition came alone.
    pub params: Option<Params>,
    /// Whether the run ignores the cache.
    pub no_cache: bool,
    pub idempotency_key: Option<IdempotencyKey>,
}

/// The key of a request that the client may send again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Unique in the cluster.
    pub key: String,
    /// The key as earlier releases stored it, if that is another one. They stored no hash.
    pub former: Option<String>,
    /// Identifies the request: another request must not use the key.
    pub request_hash: String,
}

/// The run of a submission.
#[derive(Clone, Debug)]
pub struct Submitted {
    pub run: RunRecord,
    /// False: this is the first run of the idempotency key.
    pub created: bool,
}

impl Service {
    /// Creates a run, and starts it in the same commit. If the caller disconnects before the plan is
    /// created, nothing happens.
    pub async fn submit(&self, caller: &Caller, submit: Submit) -> Result<Submitted> {
        self.check_level(submit.definition.level())?;
        self.catch_up().await?;
        let cluster = read_in_time(self.cluster(caller, submit.definition.cluster.as_deref())).await?;
        let given = submit.params.unwrap_or_default();
        let params = resolve_params(&submit.definition, &given).map_err(Error::Params)?;
        let plan = self.compile(cluster, Arc::new(submit.definition), &params, Arc::new).await?;
        let mut made = self.new_run(caller, cluster, &plan, params, submit.idempotency_key);
        made.no_cache = submit.no_cache;
        self.create(Launch { made, plan, taken: Vec::new(), firing: None, derived: false }).await
    }

    /// Returns the run of an earlier request if `key` shows that this is the same request. It is looked up before anything
    /// else is done for the request.
    pub async fn repeated(&self, key: Option<&IdempotencyKey>) -> Result<Option<Submitted>> {
        let Some(IdempotencyKey { key, former: _, request_hash }) = key else { return Ok(None) };
        let runs = read_in_time(async { Ok(self.parts.store.runs_of_key(key).await?) }).await?;
        // A new cluster may have the name of a deleted one, whose runs are not removed yet.
        let is_first = |run: &RunRecord| {
            run.request_hash.as_ref() == Some(request_hash)
                && self.parts.standing.cluster_by_id(run.cluster).is_some()
        };
        let first = runs.into_iter().find(is_first);
        Ok(first.map(|run| Submitted { run, created: false }))
    }

    /// Refuses a run that an older server on this store would execute wrongly if it took the run over.
    pub(super) fn check_level(&self, level: u32) -> Result<()> {
        if self.parts.level.reaches(level) {
            return Ok(());
        }
        Err(Error::OlderServer("this job"))
    }

    pub(crate) fn new_run(
        &self,
        caller: &Caller,
        cluster: ClusterId,
        plan: &Plan,
        params: Params,
        key: Option<IdempotencyKey>,
    ) -> RunMade {
        let now = self.now();
        let (idempotency_key, request_hash) = key.map(|key| (key.key, key.request_hash)).unzip();
        RunMade {
            id: RunId::from(self.parts.chance.dice().uuid_at(now)),
            cluster,
            job: plan.definition.name.clone(),
            definition: Arc::clone(&plan.definition),
            resolved: Arc::clone(&plan.resolved),
            by: caller.name().to_owned(),
            idempotency_key,
            request_hash,
            created_at: now,
            params,
            retry_of: None,
            no_cache: false,
            job_version: None,
        }
    }

    /// Launches a run even if the caller disconnects: a committed run needs an actor.
    pub(super) async fn create(&self, new: Launch) -> Result<Submitted> {
        let (parts, request_hash) = (self.parts.clone(), new.made.request_hash.clone());
        let (is_retry, derived) = (new.made.retry_of.is_some(), new.derived);
        let launched = tokio::spawn(async move { launch(&parts, new).await }.in_current_span());
        let launched = change_in_time(launched).await?;
        match launched.map_err(|error| Error::Bug(format!("cannot create a run: {error}")))?? {
            Ok(run) => Ok(Submitted { run, created: true }),
            Err(Refusal::KeyInUse(first)) => {
                let run = self.parts.store.run(&first).await?;
                let run = run.ok_or(Conflict::RunRemoved(first))?;
                let is_other = run.request_hash.is_some() && run.request_hash != request_hash;
                if is_other || run.retry_of.is_some() != is_retry {
                    return Err(Error::KeyReused(run.id.clone()));
                }
                Ok(Submitted { run, created: false })
            }
            Err(Refusal::RunExists(id)) if derived => {
                let run = self.parts.store.run(&id).await?;
                let busy = || Error::Busy("the same request is in progress; try again".to_owned());
                Ok(Submitted { run: run.ok_or_else(busy)?, created: false })
            }
            Err(Refusal::QueueFull { pending }) => {
                Err(Error::TooManyRuns { most: self.parts.settings.max_pending_runs, pending })
            }
            Err(Refusal::TooManyOpen { open }) => {
                Err(Error::TooManyOpenRuns { most: self.parts.settings.max_pending_runs, open })
            }
            Err(Refusal::NotKnownToAll) => {
                Err(Error::Unavailable("an older server has just joined; try again".to_owned()))
            }
            Err(other) => Err(Error::Bug(format!("the store refused a new run: {other}"))),
        }
    }
}
