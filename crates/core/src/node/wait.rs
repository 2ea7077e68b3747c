//! Explains why a pending execution for a fixed node has not started.

use std::fmt;
use std::time::Duration;

use crate::ids::RunId;
use crate::node::{Health, NodeStatus};
use crate::{Span, limits};

/// The facts about a pending execution and its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitFacts {
    pub run: RunId,
    /// The delay before its next attempt, if an attempt failed.
    pub retry_in: Option<Duration>,
    pub run_is_paused: bool,
    /// The reason why only another run may use the node.
    pub kept: Option<String>,
    pub status: NodeStatus,
    pub is_draining: bool,
    /// How long the node has been silent, if that is longer than a heartbeat interval allows.
    pub silent_for: Option<Duration>,
    /// The first limit that has no slot left.
    pub full: Option<String>,
    /// The run whose step the node runs now: a node runs one step of fleet work at a time.
    pub busy_with: Option<RunId>,
}

/// The reason why a pending execution for a fixed node has not started. A node that is busy with another step of the
/// execution's own run has `run: None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeWait {
    Retry {
        after: Duration,
    },
    Paused,
    Kept {
        why: String,
    },
    Offline,
    /// A debug command waits for its node until the node is online.
    Awaited,
    Silent {
        silent_for: Duration,
        offline_in: Duration,
    },
    Drained,
    Limit {
        full: String,
    },
    Busy {
        run: Option<RunId>,
    },
}

impl NodeWait {
    /// Returns `None` if the node is about to take the execution.
    pub fn of(facts: &WaitFacts, health: &Health) -> Option<Self> {
        let WaitFacts { retry_in, kept, status, silent_for, full, busy_with, .. } = facts;
        if let Some(after) = *retry_in {
            return Some(NodeWait::Retry { after });
        }
        if facts.run_is_paused {
            return Some(NodeWait::Paused);
        }
        // Silence comes first: it is the reason that can make the step fail.
        match (*status, *silent_for) {
            (NodeStatus::Online, None) => {}
            _ if facts.run.is_debug() => return Some(NodeWait::Awaited),
            (NodeStatus::Offline, _) => return Some(NodeWait::Offline),
            (NodeStatus::Stale, None) => return Some(silent(health.stale_after, health)),
            (_, Some(silent_for)) => return Some(silent(silent_for, health)),
        }
        if facts.is_draining && !facts.run.is_debug() {
            return Some(NodeWait::Drained);
        }
        if let Some(why) = kept {
            return Some(NodeWait::Kept { why: why.clone() });
        }
        if let Some(full) = full {
            return Some(NodeWait::Limit { full: full.clone() });
        }
        let busy_with = busy_with.as_ref()?;
        Some(NodeWait::Busy { run: (*busy_with != facts.run).then(|| busy_with.clone()) })
    }

    /// Returns a word that stays the same while the times in the text change.
    pub fn cause(&self) -> &'static str {
        match self {
            NodeWait::Retry { .. } => "retry",
            NodeWait::Paused => "paused",
            NodeWait::Kept { .. } => "kept",
            NodeWait::Offline => "offline",
            NodeWait::Awaited => "awaited",
            NodeWait::Silent { .. } => "silent",
            NodeWait::Drained => "drained",
            NodeWait::Limit { .. } => "limit",
            NodeWait::Busy { .. } => "busy",
        }
    }

    /// Returns the whole sentence: `waits for web-30, silent for 42s; fails when it is offline, in 58s`.
    pub fn sentence(&self, hostname: &str) -> String {
        match self {
            NodeWait::Retry { .. } | NodeWait::Paused | NodeWait::Limit { .. } | NodeWait::Kept { .. } => {
                format!("waits: {self}")
            }
            NodeWait::Drained => {
                format!("waits for {hostname}, {self}; `downbeat node undrain {hostname}` ends that")
            }
            NodeWait::Offline | NodeWait::Awaited | NodeWait::Silent { .. } | NodeWait::Busy { .. } => {
                format!("waits for {hostname}, {self}")
            }
        }
    }
}

fn silent(silent_for: Duration, health: &Health) -> NodeWait {
    NodeWait::Silent { silent_for, offline_in: health.offline_after.saturating_sub(silent_for) }
}

impl fmt::Display for NodeWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeWait::Retry { after } => write!(f, "an attempt failed; the next one starts {}", soon(*after)),
            NodeWait::Paused => f.write_str("the run is paused"),
            NodeWait::Kept { why } => f.write_str(why),
            NodeWait::Offline => f.write_str("offline; fails now"),
            NodeWait::Awaited => {
                write!(f, "which is not online; fails after {}", Span::from_secs(limits::DEBUG_WAIT_S))
            }
            NodeWait::Silent { silent_for, offline_in } => {
                let silent_for = Span::from_secs(silent_for.as_secs());
                write!(f, "silent for {silent_for}; fails when it is offline, {}", soon(*offline_in))
            }
            NodeWait::Drained => f.write_str("drained"),
            NodeWait::Limit { full } => f.write_str(full),
            NodeWait::Busy { run: Some(run) } => write!(f, "busy with run {run}"),
            NodeWait::Busy { run: None } => f.write_str("busy with another step of this run"),
        }
    }
}

/// Formats a delay in whole seconds: `in 58s`, or `any moment`.
fn soon(after: Duration) -> String {
    match after.as_secs() {
        0 => "any moment".to_owned(),
        seconds => format!("in {}", Span::from_secs(seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEALTH: Health =
        Health { stale_after: Duration::from_secs(30), offline_after: Duration::from_secs(100) };

    fn facts() -> WaitFacts {
        WaitFacts {
            run: RunId::from("r"),
            retry_in: None,
            run_is_paused: false,
            kept: None,
            status: NodeStatus::Online,
            is_draining: false,
            silent_for: None,
            full: None,
            busy_with: None,
        }
    }

    fn debug() -> RunId {
        RunId::debug(uuid::Uuid::from_u128(1))
    }

    fn sentence(facts: &WaitFacts) -> Option<String> {
        NodeWait::of(facts, &HEALTH).map(|wait| wait.sentence("web-30"))
    }

    #[test]
    fn a_node_that_is_free_and_online_explains_nothing() {
        assert_eq!(sentence(&facts()), None);
    }

    #[test]
    fn a_debug_command_does_not_wait_for_the_end_of_a_drain() {
        assert_eq!(sentence(&WaitFacts { run: debug(), is_draining: true, ..facts() }), None);
    }

    #[test]
    fn every_wait_names_its_reason() {
        let seconds = |seconds: u64| Some(Duration::from_millis(seconds * 1_000 + 400));
        let stale = WaitFacts { status: NodeStatus::Stale, silent_for: seconds(42), ..facts() };
        let busy = |run: &str| WaitFacts { busy_with: Some(RunId::from(run)), ..facts() };
        let cases = [
            (stale.clone(), "waits for web-30, silent for 42s; fails when it is offline, in 57s"),
            (
                WaitFacts { silent_for: seconds(16), ..facts() },
                "waits for web-30, silent for 16s; fails when it is offline, in 1m23s",
            ),
            (
                WaitFacts { silent_for: seconds(200), ..stale.clone() },
                "waits for web-30, silent for 3m20s; fails when it is offline, any moment",
            ),
            (WaitFacts { status: NodeStatus::Offline, ..facts() }, "waits for web-30, offline; fails now"),
            (
                WaitFacts { is_draining: true, ..facts() },
                "waits for web-30, drained; `downbeat node undrain web-30` ends that",
            ),
            (
                WaitFacts { run: debug(), status: NodeStatus::Offline, is_draining: true, ..facts() },
                "waits for web-30, which is not online; fails after 1h",
            ),
            (busy("other"), "waits for web-30, busy with run other"),
            (busy("r"), "waits for web-30, busy with another step of this run"),
            (WaitFacts { run_is_paused: true, ..stale }, "waits: the run is paused"),
            (
                WaitFacts { full: Some("limit db: 1 of 1 are taken".to_owned()), ..busy("other") },
                "waits: limit db: 1 of 1 are taken",
            ),
            (
                WaitFacts { retry_in: seconds(3), ..facts() },
                "waits: an attempt failed; the next one starts in 3s",
            ),
        ];
        for (facts, expected) in cases {
            assert_eq!(sentence(&facts).as_deref(), Some(expected), "{facts:?}");
        }
    }

    #[test]
    fn silence_outranks_what_the_node_is_busy_with() {
        let facts = WaitFacts {
            status: NodeStatus::Stale,
            silent_for: Some(Duration::from_secs(40)),
            is_draining: true,
            busy_with: Some(RunId::from("other")),
            ..facts()
        };
        assert_eq!(NodeWait::of(&facts, &HEALTH).unwrap().cause(), "silent");
    }
}
