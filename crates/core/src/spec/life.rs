//! Owns what a job definition sets about the life of its runs: constraints before and after the plan, and actions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::backend::Params;
use crate::limits;
use crate::span::Span;
use crate::spec::Notification;
use crate::words::words;

/// The constraints of a job. `fields` describes each field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Constraints {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_runs: Option<u32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub require_previous_success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_expected: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_allowed: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_run_hook: Option<HttpHook>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_run_hook: Option<HttpHook>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_unknown: Option<IfUnknown>,
}

impl Constraints {
    /// Returns what happens if a constraint cannot be checked. A hook may have its own rule.
    pub fn if_unknown(&self, hook: Option<&HttpHook>) -> IfUnknown {
        hook.and_then(|hook| hook.if_unknown).or(self.if_unknown).unwrap_or_default()
    }
}

words! {
    /// What happens to a run if a constraint cannot be checked.
    #[derive(Default)]
    pub enum IfUnknown {
        Skip = "skip",
        #[default]
        Allow = "allow",
    }
}

/// An HTTP call that decides about a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpHook {
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_unknown: Option<IfUnknown>,
}

impl HttpHook {
    pub fn timeout_or_default(&self) -> Span {
        self.timeout.unwrap_or(Span::from_secs(limits::HOOK_TIMEOUT_DEFAULT_S))
    }
}

words! {
    /// What happens while another run of the job is active.
    pub enum Overlap {
        Allow = "allow",
        Skip = "skip",
        Queue = "queue",
        QueueLatest = "queue_latest",
        Replace = "replace",
    }
}

/// An action on a violation, success or failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    #[serde(flatten)]
    pub what: What,
    /// The run fails if the action fails.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub critical: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum What {
    /// Completes the run without starting it.
    Skip,
    /// Checks the constraints again after this time.
    RetryLater { delay: Span },
    /// Cancels older runs of the job, and waits until they have ended.
    KillOld,
    /// Waits until another run of the job has ended.
    Wait,
    TriggerJob {
        job: String,
        #[serde(default, skip_serializing_if = "Params::is_empty")]
        params: Params,
    },
    /// Queues a message. It has its own values of `action`.
    #[serde(untagged)]
    Notify(Notification),
}

words! {
    /// The kind of an action.
    pub enum ActionKind {
        Skip = "skip",
        RetryLater = "retry_later",
        KillOld = "kill_old",
        Wait = "wait",
        Webhook = "webhook",
        Slack = "slack",
        Email = "email",
        TriggerJob = "trigger_job",
    }
}

impl ActionKind {
    /// Returns whether the action decides what becomes of a run that violates a constraint.
    pub fn decides(self) -> bool {
        match self {
            ActionKind::Skip | ActionKind::RetryLater | ActionKind::KillOld | ActionKind::Wait => true,
            ActionKind::Webhook | ActionKind::Slack | ActionKind::Email | ActionKind::TriggerJob => false,
        }
    }
}

impl What {
    pub fn kind(&self) -> ActionKind {
        match self {
            What::Skip => ActionKind::Skip,
            What::RetryLater { .. } => ActionKind::RetryLater,
            What::KillOld => ActionKind::KillOld,
            What::Wait => ActionKind::Wait,
            What::Notify(Notification::Webhook { .. }) => ActionKind::Webhook,
            What::Notify(Notification::Slack { .. }) => ActionKind::Slack,
            What::Notify(Notification::Email { .. }) => ActionKind::Email,
            What::TriggerJob { .. } => ActionKind::TriggerJob,
        }
    }
}

impl From<What> for Action {
    fn from(what: What) -> Self {
        Self { what, critical: false }
    }
}

impl Overlap {
    /// Returns the action on a violation of `max_concurrent_runs: 1`, which the word stands for.
    pub fn action(self) -> Option<What> {
        match self {
            Overlap::Allow => None,
            Overlap::Skip => Some(What::Skip),
            Overlap::Queue | Overlap::QueueLatest => Some(What::Wait),
            Overlap::Replace => Some(What::KillOld),
        }
    }
}
