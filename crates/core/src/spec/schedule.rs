//! Owns the schedules of a job definition: when the job starts by itself.

use serde::{Deserialize, Serialize};

use crate::schedule::{Days, Rule, Zone};
use crate::span::Span;
use crate::words::words;

/// One schedule of a job. `fields` describes each field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    #[serde(flatten)]
    pub when: When,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<CatchUp>,
    #[serde(default, skip_serializing_if = "Days::is_empty")]
    pub exclude: Days,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Span>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// A cron expression, as written.
    Cron(String),
    Every(Span),
}

/// What happens to times at which no server could start the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatchUp {
    pub policy: CatchUpPolicy,
    /// How late a start may be. Zero if nothing is caught up.
    #[serde(default, skip_serializing_if = "Span::is_zero")]
    pub window: Span,
}

words! {
    pub enum CatchUpPolicy {
        All = "all",
        Latest = "latest",
        None = "none",
    }
}

impl CatchUp {
    /// What a schedule without `catch_up` does: a restart of the servers misses nothing.
    pub const DEFAULT: Self = Self { policy: CatchUpPolicy::All, window: Span::from_secs(60) };

    pub(super) const NONE: Self = Self { policy: CatchUpPolicy::None, window: Span::from_secs(0) };
}

impl Schedule {
    /// Returns the schedule of an expression.
    pub fn new(rule: &Rule, zone: Option<&Zone>) -> Self {
        let when = match rule {
            Rule::Cron(cron) => When::Cron(cron.to_string()),
            Rule::Every(seconds) => When::Every(Span::from_secs(*seconds)),
        };
        let timezone = zone.map(|zone| zone.name().to_owned());
        Self { when, timezone, catch_up: None, exclude: Days::default(), jitter: None }
    }

    pub fn catch_up(&self) -> CatchUp {
        self.catch_up.unwrap_or(CatchUp::DEFAULT)
    }

    pub fn jitter(&self) -> Span {
        self.jitter.unwrap_or_default()
    }
}
