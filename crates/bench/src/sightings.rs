//! Owns the events of runs that a client received on a live stream, and when.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use downbeat_client::Feed;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::failure::Failure;

/// The events of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct RunSeen {
    /// Finished executions.
    pub finished: u64,
    /// The server that created it.
    pub creator: Option<String>,
    pub owner: Option<String>,
    /// When another server became its owner, since the last reset.
    pub taken: Option<Instant>,
    /// When the new owner first continued it, seen by an event that only an owner commits.
    pub moved_on: Option<Instant>,
    /// The final status.
    pub status: Option<String>,
}

#[derive(Debug, Default)]
struct Seen {
    runs: HashMap<String, RunSeen>,
    events: u64,
    failure: Option<Failure>,
}

/// The received events of all runs; follows the stream until it is dropped.
#[derive(Debug)]
pub(super) struct Sightings {
    seen: Arc<Mutex<Seen>>,
    following: JoinHandle<()>,
}

impl Sightings {
    pub(super) fn follow(mut feed: Feed) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let shared = Arc::clone(&seen);
        let following = tokio::spawn(async move {
            loop {
                let next = feed.next().await;
                let mut seen = shared.lock().unwrap_or_else(PoisonError::into_inner);
                match next {
                    Ok(Some(message)) => match message.decode::<Value>() {
                        Ok(event) => seen.take(&event, Instant::now()),
                        Err(failure) => seen.failure = Some(failure.into()),
                    },
                    Ok(None) => seen.failure = Some(Failure::bug("the event stream ended")),
                    Err(failure) => seen.failure = Some(failure.into()),
                }
                if seen.failure.is_some() {
                    return;
                }
            }
        });
        Self { seen, following }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn of(&self, run: &str) -> RunSeen {
        self.seen().runs.get(run).cloned().unwrap_or_default()
    }

    pub(super) fn events(&self) -> u64 {
        self.seen().events
    }

    /// Resets: only later take-overs count. Returns how many runs had been taken over.
    pub(super) fn reset(&self) -> u64 {
        self.seen().reset()
    }

    /// Returns why the stream has ended.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.seen().failure.clone()
    }
}

impl Drop for Sightings {
    fn drop(&mut self) {
        self.following.abort();
    }
}

impl Seen {
    fn reset(&mut self) -> u64 {
        let taken = self.runs.values().filter(|sight| sight.taken.is_some()).count();
        for sight in self.runs.values_mut() {
            (sight.taken, sight.moved_on) = (None, None);
        }
        taken as u64
    }

    fn take(&mut self, event: &Value, now: Instant) {
        self.events += 1;
        let Some(run) = event["run"].as_str() else { return };
        let sight = self.runs.entry(run.to_owned()).or_default();
        let owner = || event["data"]["owner"].as_str().map(str::to_owned);
        match event["kind"].as_str() {
            Some("execution_finished") => sight.finished += 1,
            Some("run_created") => (sight.creator, sight.owner) = (owner(), owner()),
            Some("run_taken") => {
                sight.owner = owner();
                sight.taken = sight.taken.or(Some(now));
            }
            // Reports may come through any server; these two come from the owner.
            Some("executions_added" | "run_moved") if sight.taken.is_some() => {
                sight.moved_on = sight.moved_on.or(Some(now));
            }
            _ => {}
        }
        if event["kind"] == "run_moved"
            && let Some(status @ ("completed" | "failed" | "cancelled")) = event["data"]["status"].as_str()
        {
            sight.status = Some(status.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_has_moved_on_when_its_new_owner_did_something_and_not_before() {
        let mut seen = Seen::default();
        let begun = Instant::now();
        let kinds =
            ["executions_added", "execution_finished", "run_taken", "execution_finished", "run_moved"];
        for (second, kind) in (0..).zip(kinds) {
            assert_eq!(seen.runs.get("r").and_then(|sight| sight.moved_on), None, "before {kind}");
            let at = begun + Duration::from_secs(second);
            seen.take(&json!({"run": "r", "kind": kind, "data": {"status": "completed"}}), at);
        }
        let sight = &seen.runs["r"];
        assert_eq!(sight.taken, Some(begun + Duration::from_secs(2)));
        assert_eq!(sight.moved_on, Some(begun + Duration::from_secs(4)));
        assert_eq!((sight.finished, sight.status.as_deref()), (2, Some("completed")));
    }

    #[test]
    fn a_run_belongs_to_its_last_owner_and_earlier_owners_do_not_count() {
        let mut seen = Seen::default();
        for (kind, owner) in [("run_created", "a"), ("run_taken", "b"), ("run_moved", "b")] {
            seen.take(&json!({"run": "r", "kind": kind, "data": {"owner": owner}}), Instant::now());
        }
        assert_eq!((seen.reset(), seen.reset()), (1, 0));
        let sight = &seen.runs["r"];
        assert_eq!((sight.creator.as_deref(), sight.owner.as_deref()), (Some("a"), Some("b")));
        assert_eq!((sight.taken, sight.moved_on), (None, None));
    }
}
