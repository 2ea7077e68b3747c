//! Starts jobs by HTTP triggers.

use std::sync::Arc;

use downbeat_core::ids::{RunId, sha256_hex};
use downbeat_core::job::JobRecord;
use downbeat_core::limits::HOOK_WINDOW_S;
use downbeat_core::spec::{HookAuth, HttpTrigger, Trigger};
use downbeat_core::trigger::{self, Proven, Sent, http_facts};
use serde_json::Value;
use tracing::warn;
use uuid::Uuid;

use super::patience::read_in_time;
use super::{IdempotencyKey, Service, Submitted};
use crate::caller::Caller;
use crate::error::{Conflict, Error, Noun, Result};
use crate::jobs::Source;
use crate::runs::Launch;
use crate::secret;

/// An HTTP trigger of a stored job.
#[derive(Clone, Debug)]
pub(crate) struct Hook {
    job: Arc<JobRecord>,
    /// The position of the trigger in the definition.
    index: usize,
}

/// A request whose sender knows the secret.
#[derive(Debug)]
pub(crate) struct HookRequest<'r> {
    pub(crate) proven: Proven,
    pub(crate) payload: Value,
    pub(crate) body: &'r [u8],
    /// What GitHub calls the event, and the number of the request.
    pub(crate) event: Option<&'r str>,
    pub(crate) delivery: Option<&'r str>,
    /// By the header `Idempotency-Key`.
    pub(crate) key: Option<IdempotencyKey>,
}

impl Hook {
    fn trigger(&self) -> &Trigger {
        &self.job.current.definition.triggers[self.index]
    }

    fn http(&self) -> &HttpTrigger {
        match self.trigger() {
            Trigger::Http(http) => http,
            Trigger::Job(_) | Trigger::Event(_) => unreachable!("a hook is an HTTP trigger"),
        }
    }

    pub(crate) fn auth(&self) -> HookAuth {
        self.http().auth
    }
}

impl Service {
    /// Returns the trigger with a path.
    pub(crate) async fn hook(&self, path: &str) -> Result<Hook> {
        let source = Source::Path(path.to_owned());
        let mut jobs = self.parts.jobs.waiting_for(&source);
        if jobs.is_empty() {
            // Another server may have applied it just now.
            self.catch_up().await?;
            jobs = self.parts.jobs.waiting_for(&source);
        }
        // Servers from before the guard of triggers may have accepted the same path at the same moment.
        if jobs.len() > 1 {
            return Err(Conflict::HookPathTwice(path.to_owned()).into());
        }
        let job = jobs.pop().ok_or(Noun::Hook)?.record;
        let is_meant = |trigger: &Trigger| matches!(trigger, Trigger::Http(http) if http.path == path);
        let index = job.current.definition.triggers.iter().position(is_meant).ok_or(Noun::Hook)?;
        Ok(Hook { job, index })
    }

    /// Checks that the sender of a request knows the secret, and that the trigger accepts another request. Only accepted
    /// senders use up the rate: others must not block them.
    pub(crate) async fn prove(&self, hook: &Hook, sent: &Sent<'_>) -> Result<Proven> {
        let http = hook.http();
        let secret = match &http.secret {
            None => Vec::new(),
            Some(source) => secret::read(source).await.map_err(|why| {
                warn!(path = http.path, job = %hook.job.key().name, why, "cannot use the secret of a trigger");
                Error::Unavailable("the server cannot use the secret of this trigger; its log says why".to_owned())
            })?,
        };
        let proven = trigger::check(http.auth, &secret, sent, self.now())?;
        let most = self.parts.settings.hook_rate;
        if !self.parts.hook_rates.take(&http.path, most, self.now()) {
            return Err(Error::TooManyRequests { path: http.path.clone(), most });
        }
        Ok(proven)
    }

    /// Starts the job of a trigger, unless the same request has started it before. Returns the run and the job's name.
    pub(crate) async fn start_by_hook(
        &self,
        hook: &Hook,
        request: HookRequest<'_>,
    ) -> Result<(Submitted, Arc<str>)> {
        let (job, path) = (&hook.job, &hook.http().path);
        let key = job.key();
        if job.live.paused_at.is_some() {
            return Err(Conflict::TriggerPaused(key.name.to_string()).into());
        }
        let HookRequest { proven, payload, body, event, delivery, key: by_header } = request;
        let of_job = |rest: &str| format!("hook\n{}\n{path}\n{rest}", key.name);
        let id = delivery.filter(|delivery| !delivery.is_empty() && matches!(proven, Proven::Signed(_)));
        let id = id.map(|delivery| Uuid::new_v5(&key.id().0, of_job(delivery).as_bytes()));
        let id = id.map(RunId::from);
        let [now, before] = match &proven {
            Proven::Plain => [by_header, None],
            Proven::Signed(signature) => {
                // A signature is remembered for the window: this part of time, and the part before.
                let part = self.now().as_second().div_euclid(HOOK_WINDOW_S);
                let of_part = |part: i64| IdempotencyKey {
                    key: of_job(&format!("{signature}\n{part}")),
                    former: None,
                    request_hash: sha256_hex(body),
                };
                [Some(of_part(part)), Some(of_part(part - 1))]
            }
        };
        for known in [&before, &now] {
            if let Some(first) = self.repeated(known.as_ref()).await? {
                return Ok((first, Arc::clone(&key.name)));
            }
        }
        if let Some(id) = &id
            && let Some(run) = read_in_time(async { Ok(self.parts.store.run(id).await?) }).await?
        {
            return Ok((Submitted { run, created: false }, Arc::clone(&key.name)));
        }
        self.catch_up().await?;
        let definition = Arc::clone(&job.current.definition);
        let facts = http_facts(path, event, delivery);
        let params = trigger::params(&definition, hook.trigger(), &facts, Some(&payload));
        let params = params.map_err(Error::Params)?;
        let plan = self.compile(key.cluster, definition, &params, Arc::new).await?;
        let caller = Caller::of(trigger::caller_of(hook.trigger()));
        let mut made = self.new_run(&caller, key.cluster, &plan, params, now);
        made.job_version = Some(job.current.version);
        let derived = id.is_some();
        made.id = id.unwrap_or(made.id);
        let launch = Launch { made, plan, taken: Vec::new(), firing: None, derived };
        Ok((self.create(launch).await?, Arc::clone(&key.name)))
    }
}
