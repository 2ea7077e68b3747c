//! Carries out what a run's course asks for: reads facts about the other runs of its job, calls hooks, queues messages, cancels
//! old runs, and starts jobs. Everything may happen twice: a server that takes the run over asks again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use downbeat_core::Change;
use downbeat_core::backend::Params;
use downbeat_core::delivery::{self, DeliveryState};
use downbeat_core::ids::{ClusterId, DeliveryId, RunId, sha256_hex};
use downbeat_core::job::JobKey;
use downbeat_core::limits;
use downbeat_core::run::constraints::{Facts, HookAnswer, Other, Previous, Subject, to_cancel};
use downbeat_core::run::{
    ConstraintKind, Effect, EffectResult, Notify, RunBrief, RunMade, RunRecord, RunState, shortened,
};
use downbeat_core::span::Span;
use downbeat_core::spec::HttpHook;
use downbeat_store::{Page, RunFilter};
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::caller::Caller;
use crate::error::Class;
use crate::outbound::Request;
use crate::parts::Parts;
use crate::service::{IdempotencyKey, Service};

/// The pause before something is tried again that the store prevented.
const RETRY: Duration = Duration::from_millis(500);
/// Ended runs that are read at once.
const PAGE: u32 = 100;

/// The part of a server that a run with constraints or actions needs. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Effects {
    service: Service,
    run: Arc<RunMade>,
}

impl Effects {
    /// Returns `None` for a run that has neither constraints nor actions.
    pub(super) fn of(parts: &Parts, run: &Arc<RunMade>) -> Option<Self> {
        let is_needed = run.definition.checks_before() || run.definition.acts_after();
        is_needed.then(|| Self { service: Service::new(parts.clone()), run: Arc::clone(run) })
    }

    /// Returns the job whose runs concern this one.
    pub(super) fn job(&self) -> Option<JobKey> {
        Some(JobKey::new(self.run.cluster, self.run.job.as_deref()?))
    }

    fn subject(&self) -> Subject<'_> {
        let is_retry = self.run.retry_of.is_some();
        Subject { id: &self.run.id, created_at: self.run.created_at, is_retry }
    }

    fn caller(&self) -> Caller {
        Caller::of(format!("job {}", self.run.job.as_deref().unwrap_or("without a name")))
    }

    /// Carries out an effect. It ends early only if it is dropped.
    pub(super) async fn perform(self, effect: Effect) -> EffectResult {
        match effect {
            Effect::ReadFacts { previous } => EffectResult::Facts(self.facts(previous).await),
            Effect::CallHook { constraint, hook, outcome } => {
                EffectResult::Hook(self.call_hook(constraint, &hook, outcome).await)
            }
            Effect::CancelOld => EffectResult::Done(self.cancel_old().await),
            Effect::Notify(notify) => EffectResult::Done(self.notify(*notify).await),
            Effect::StartJob { job, params, key } => {
                EffectResult::Done(self.start_job(&job, &params, key).await)
            }
        }
    }

    /// Reads the facts. It tries again while the store is unavailable.
    async fn facts(&self, with_previous: bool) -> Facts {
        loop {
            match self.read_facts(with_previous).await {
                Ok(facts) => return facts,
                Err(error) => warn!(error, "cannot read the other runs of the job; trying again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn read_facts(&self, with_previous: bool) -> Result<Facts, String> {
        let Some(key) = self.job() else { return Ok(Facts { others: Vec::new(), previous: Ok(None) }) };
        self.service.catch_up().await.map_err(|error| error.to_string())?;
        let is_of_job = |run: &RunRecord| {
            run.cluster == key.cluster && run.job.as_deref() == Some(&*key.name) && !run.id.is_debug()
        };
        let other = |run: &RunRecord| Other::of(&run.id, run.created_at, &run.live);
        let others = self.service.parts.admission.map_open(is_of_job, other);
        let previous = if with_previous { self.previous(key.cluster, &key.name).await? } else { Ok(None) };
        Ok(Facts { others, previous })
    }

    /// Finds the last run of the job that started and ended. The outer error is one of the store.
    async fn previous(
        &self,
        cluster: ClusterId,
        job: &str,
    ) -> Result<Result<Option<Previous>, String>, String> {
        let filter = RunFilter {
            cluster: Some(cluster),
            job: Some(job.to_owned()),
            states: RunState::ALL.into_iter().filter(|state| state.is_terminal()).collect(),
            ..RunFilter::default()
        };
        let (mut page, mut read) = (Page::first(PAGE), 0);
        loop {
            let listed = self.service.parts.store.runs(&filter, &page).await;
            let listed = listed.map_err(|error| error.to_string())?;
            let has_started = |run: &&RunBrief| run.live.started_at.is_some() && run.id != self.run.id;
            if let Some(last) = listed.rows.iter().find(has_started) {
                let succeeded = last.state() == RunState::Completed;
                return Ok(Ok(Some(Previous { run: last.id.clone(), succeeded })));
            }
            read += PAGE;
            match listed.next {
                None => return Ok(Ok(None)),
                Some(_) if read >= limits::PREVIOUS_RUNS_READ => {
                    return Ok(Err(format!("none of the last {read} runs of the job started")));
                }
                Some(next) => page.start = next,
            }
        }
    }

    /// Requests the end of older runs of the job.
    async fn cancel_old(&self) -> Result<(), String> {
        let facts = self.facts(false).await;
        let old: Vec<RunId> = to_cancel(&self.run.definition, self.subject(), &facts);
        if old.is_empty() {
            return Ok(());
        }
        loop {
            let (by, at) = (self.caller().name().to_owned(), self.service.now());
            let request = |run: &RunId| Change::RunCancelRequested { run: run.clone(), by: by.clone(), at };
            match self.service.parts.journal.commit(old.iter().map(request).collect()).await {
                // A refused one has ended, or its end was requested before.
                Ok(_) => {
                    info!(runs = old.len(), "cancelled older runs of the job");
                    return Ok(());
                }
                Err(error) => warn!(%error, "cannot cancel older runs of the job; trying again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn start_job(&self, name: &str, params: &Params, key: String) -> Result<(), String> {
        let caller = self.caller();
        loop {
            let started = async {
                let job = self.service.job(&caller, self.run.cluster, name).await?;
                let request_hash = sha256_hex(key.as_bytes());
                let key = IdempotencyKey { key: key.clone(), former: None, request_hash };
                self.service.run_job(&caller, &job.record, params, false, Some(key)).await
            };
            match started.await {
                Ok(started) => {
                    info!(run = %started.run.id, job = name, "an action started a job");
                    return Ok(());
                }
                Err(error) if matches!(error.class(), Class::Unavailable | Class::Busy) => {
                    warn!(%error, job = name, "cannot start the job of an action; trying again");
                }
                Err(error) => return Err(shortened(&error.to_string())),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Returns what a hook learns about the run.
    fn body(&self, event: &str, outcome: Option<(RunState, Option<String>)>) -> Value {
        let mut body = json!({
            "event": event,
            "run": self.run.id,
            "job": self.run.job,
            "job_version": self.run.job_version,
            "cluster": self.run.cluster,
            "created_at": self.run.created_at,
        });
        if let Some((state, error)) = outcome {
            body["state"] = json!(state);
            body["error"] = json!(error);
        }
        body
    }

    fn request(&self, url: &str, headers: HeaderMap, body: &Value, timeout: Span) -> Request {
        let body = Bytes::from(body.to_string());
        Request { method: Method::POST, url: url.to_owned(), headers, body, timeout }
    }

    async fn call_hook(
        &self,
        constraint: ConstraintKind,
        hook: &HttpHook,
        outcome: Option<(RunState, Option<String>)>,
    ) -> HookAnswer {
        let mut headers = json_headers();
        for (name, value) in &hook.headers {
            let name = HeaderName::try_from(name.as_str());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value.as_str())) {
                headers.insert(name, value);
            }
        }
        let body = self.body(constraint.as_str(), outcome);
        let request = self.request(&hook.url, headers, &body, hook.timeout_or_default());
        match self.service.parts.outbound.send(request).await {
            Ok(answer) => HookAnswer::Status(answer.status.as_u16()),
            Err(error) => HookAnswer::Failed(error.to_string()),
        }
    }

    /// Queues a message. If it is critical, waits until it was delivered or given up.
    async fn notify(&self, notify: Notify) -> Result<(), String> {
        let cluster_name = self.service.cluster_name(self.run.cluster);
        loop {
            let facts = delivery::Facts {
                cluster: self.run.cluster,
                cluster_name: &cluster_name,
                run: &self.run.id,
                job: self.run.job.as_deref(),
                event: notify.occasion.as_str(),
                status: notify.state.as_str(),
                error: notify.error.as_deref(),
                params: &self.run.params,
                created_at: self.run.created_at,
                started_at: notify.started_at,
                finished_at: notify.finished_at,
                now: self.service.now(),
            };
            let delivery = delivery::build(&notify.notification, &facts, &notify.place);
            let (id, epoch) = (delivery.id, notify.epoch);
            let queued = Change::DeliveryQueued { delivery, epoch };
            match self.service.parts.journal.commit_one(queued).await {
                // A refused one was queued before, or another server owns the run.
                Ok(_) if notify.is_critical => return self.delivered(id).await,
                Ok(_) => return Ok(()),
                Err(error) => warn!(%error, "cannot queue a message; trying again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn delivered(&self, id: DeliveryId) -> Result<(), String> {
        loop {
            match self.service.parts.store.delivery(id).await {
                Ok(None) => return Err("the message was removed before it was delivered".to_owned()),
                Ok(Some(delivery)) => match delivery.state {
                    DeliveryState::Pending { .. } => {}
                    DeliveryState::Delivered { .. } => return Ok(()),
                    DeliveryState::Failed { .. } => {
                        let error = delivery.last.and_then(|last| last.error);
                        let error = error.unwrap_or_else(|| "the message was not delivered".to_owned());
                        return Err(shortened(&error));
                    }
                },
                Err(error) => warn!(%error, "cannot read the delivery of a message; trying again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

fn json_headers() -> HeaderMap {
    HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))])
}
