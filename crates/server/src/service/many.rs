//! Cancels, retries and drains many runs or nodes with one request, or counts them.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use downbeat_api::{Many, Refused};
use downbeat_core::ids::{ClusterId, RunId};
use downbeat_core::node::NodeRecord;
use downbeat_core::run::{RunBrief, RunRecord, RunState};
use downbeat_core::select::Selector;
use downbeat_core::{Change, limits};
use downbeat_store::{Page, RunFilter};

use super::patience::change_in_time;
use super::{Drain, IdempotencyKey, Redo, Retry, Service};
use crate::caller::Caller;
use crate::error::{Class, Error, Result};

/// Which runs a request is about. Every criterion that is present must hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct WhichRuns {
    pub(crate) ids: Option<BTreeSet<RunId>>,
    pub(crate) states: Option<Vec<RunState>>,
    pub(crate) job: Option<String>,
    pub(crate) cluster: Option<ClusterId>,
}

impl WhichRuns {
    fn matches(&self, run: &RunRecord) -> bool {
        self.ids.as_ref().is_none_or(|ids| ids.contains(&run.id))
            && self.states.as_ref().is_none_or(|states| states.contains(&run.state()))
            && self.job.as_ref().is_none_or(|job| run.job.as_ref() == Some(job))
            && self.cluster.is_none_or(|cluster| cluster == run.cluster)
    }
}

/// Which nodes of a cluster a request is about. Every criterion that is present must hold.
#[derive(Clone, Debug)]
pub(crate) struct WhichNodes {
    pub(crate) cluster: ClusterId,
    /// Hostnames or ids.
    pub(crate) names: Option<BTreeSet<String>>,
    pub(crate) selector: Option<Selector>,
}

impl WhichNodes {
    fn matches(&self, node: &NodeRecord) -> bool {
        let has = |names: &BTreeSet<String>| {
            names.contains(&node.description.hostname) || names.contains(&node.id.to_string())
        };
        self.names.as_ref().is_none_or(has)
            && self.selector.as_ref().is_none_or(|selector| selector.matches(node))
    }
}

/// Whether to change what a request matches, or only to count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Change,
    Count,
}

/// Returns the key under which a request that retries many runs retries this one.
fn key_of_retry(key: &str, run: &RunId) -> String {
    format!("{key}\n{run}")
}

fn many(effect: Effect, mut names: Vec<String>) -> Many {
    let matched = names.len() as u64;
    names.truncate(limits::NAMED_OF_MANY);
    Many { dry_run: effect == Effect::Count, matched, changed: 0, names, refused: Vec::new() }
}

impl Service {
    /// Requests the end of all matching runs that are open.
    pub(crate) async fn cancel_many(
        &self,
        caller: &Caller,
        which: &WhichRuns,
        effect: Effect,
    ) -> Result<Many> {
        // Of debug commands, only those that the request names.
        let is_meant = |run: &RunRecord| which.ids.is_some() || !run.id.is_debug();
        let is_due =
            |run: &RunRecord| run.live.cancel_requested_at.is_none() && is_meant(run) && which.matches(run);
        let runs = self.parts.admission.open_runs(is_due);
        let mut done = many(effect, runs.iter().map(RunId::to_string).collect());
        if let Some(ids) = &which.ids {
            let open = BTreeSet::from_iter(self.parts.admission.open_runs(|run| ids.contains(&run.id)));
            for id in ids.difference(&open) {
                self.run_or_refusal(caller, id, &mut done.refused).await?;
            }
            done.refused.truncate(limits::NAMED_OF_MANY);
        }
        let change = |run: RunId| {
            let (by, at) = (caller.name().to_owned(), self.now());
            Change::RunCancelRequested { run, by, at }
        };
        self.commit_many(done, runs.into_iter().map(change).collect()).await
    }

    /// Drains all matching nodes, or ends their drain.
    pub(crate) async fn drain_many(
        &self,
        caller: &Caller,
        which: &WhichNodes,
        drain: Drain,
        effect: Effect,
    ) -> Result<Many> {
        let draining = drain == Drain::On;
        let mut nodes = self.known_nodes(Some(which.cluster));
        nodes.retain(|node| node.draining != draining && which.matches(node));
        let hostname = |node: &Arc<NodeRecord>| node.description.hostname.clone();
        nodes.sort_by_cached_key(hostname);
        let done = many(effect, nodes.iter().map(hostname).collect());
        let change = |node: Arc<NodeRecord>| {
            let (by, at) = (caller.name().to_owned(), self.now());
            Change::NodeDrainSet { node: node.id, draining, by, at }
        };
        let done = self.commit_many(done, nodes.into_iter().map(change).collect()).await?;
        self.parts.dispatcher.wake();
        Ok(done)
    }

    /// Commits the changes in portions. A refused one needs no change: its run has ended, or its node was deleted.
    async fn commit_many(&self, mut done: Many, changes: Vec<Change>) -> Result<Many> {
        if done.dry_run {
            return Ok(done);
        }
        for portion in changes.chunks(limits::CHANGES_PER_COMMIT) {
            let committed = change_in_time(self.parts.journal.commit(portion.to_vec())).await??;
            done.changed += committed.iter().filter(|outcome| outcome.is_ok()).count() as u64;
        }
        Ok(done)
    }

    /// Retries all matching runs that have ended and did not complete. Each is a new run with a plan of its own, so their
    /// number is bounded; a request that matches more is refused as a whole, because a second one would retry the first
    /// runs again.
    pub(crate) async fn retry_many(
        &self,
        caller: &Caller,
        which: &WhichRuns,
        redo: &Redo,
        key: Option<&IdempotencyKey>,
        effect: Effect,
    ) -> Result<Many> {
        let mut refused = Vec::new();
        let (runs, matched) = self.ended_runs(caller, which, key, &mut refused).await?;
        let mut done = many(effect, runs.iter().map(RunId::to_string).collect());
        (done.matched, done.refused) = (matched, refused);
        if effect == Effect::Count {
            return Ok(done);
        }
        if matched > u64::from(limits::RETRIES_AT_ONCE) {
            return Err(Error::TooManyMatch { matched, most: limits::RETRIES_AT_ONCE });
        }
        for run in runs {
            let idempotency_key = key.map(|IdempotencyKey { key, former: _, request_hash }| IdempotencyKey {
                key: key_of_retry(key, &run),
                former: None,
                request_hash: request_hash.clone(),
            });
            let name = run.to_string();
            match self.retry(caller, Retry { run, redo: redo.clone(), idempotency_key }).await {
                Ok(_) => done.changed += 1,
                Err(error) => {
                    done.refused.push(Refused { name, reason: error.to_string() });
                    // The others would be refused as well. The caller has to know of those that were retried.
                    if !matches!(error.class(), Class::Rejected | Class::NotFound | Class::Conflict) {
                        break;
                    }
                }
            }
        }
        Ok(done)
    }

    /// Returns the first matching runs that failed or were cancelled, the oldest first, and how many match. Without ids
    /// only the newest runs are searched. A request that is sent again does not match the runs that it created the first
    /// time. Ids without a run are added to `refused`.
    async fn ended_runs(
        &self,
        caller: &Caller,
        which: &WhichRuns,
        key: Option<&IdempotencyKey>,
        refused: &mut Vec<Refused>,
    ) -> Result<(Vec<RunId>, u64)> {
        let can_be_retried = |state: &RunState| matches!(state, RunState::Failed | RunState::Cancelled);
        let mut found = Vec::new();
        if let Some(ids) = &which.ids {
            for id in ids {
                let run = self.run_or_refusal(caller, id, refused).await?;
                let is_wanted = |run: &RunRecord| can_be_retried(&run.state()) && which.matches(run);
                found.extend(run.filter(is_wanted).map(|run| run.id.clone()));
            }
            let matched = found.len() as u64;
            return Ok((found, matched));
        }
        let states = which.states.clone().unwrap_or_else(|| RunState::ALL.to_vec());
        let states: Vec<RunState> = states.into_iter().filter(can_be_retried).collect();
        if states.is_empty() {
            return Ok((found, 0));
        }
        let (cluster, job) = (which.cluster, which.job.clone());
        let filter = RunFilter { cluster, states, job, ..RunFilter::default() };
        let mut page = Page::first(limits::RETRIES_AT_ONCE + 1);
        let (mut total, mut own) = (None, 0);
        // A page may end before its limit is reached.
        for _ in 0..limits::PAGES_SEARCHED {
            if found.len() > limits::RETRIES_AT_ONCE as usize {
                break;
            }
            let listed = self.runs(caller, &filter, &page).await?;
            total = total.or(listed.total);
            for run in listed.rows {
                if self.is_retry_of(key, &run).await? {
                    own += 1;
                } else {
                    found.push(run.id);
                }
            }
            match listed.next {
                Some(next) => page.start = next,
                None => break,
            }
        }
        let matched = total.map_or(found.len() as u64, |total| total.saturating_sub(own));
        found.reverse();
        Ok((found, matched))
    }

    /// Returns a run that a request names. If it does not exist, it is added to `refused`: the request is about the others.
    async fn run_or_refusal(
        &self,
        caller: &Caller,
        id: &RunId,
        refused: &mut Vec<Refused>,
    ) -> Result<Option<RunRecord>> {
        match self.run(caller, id).await {
            Ok(run) => Ok(Some(run)),
            Err(error) if error.class() == Class::NotFound => {
                refused.push(Refused { name: id.to_string(), reason: error.to_string() });
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether the request with this key has created the run.
    async fn is_retry_of(&self, key: Option<&IdempotencyKey>, run: &RunBrief) -> Result<bool> {
        let (Some(key), Some(first)) = (key, &run.retry_of) else { return Ok(false) };
        let created = self.parts.views.runs_of_key(&key_of_retry(&key.key, first)).await?;
        Ok(created.iter().any(|created| created.id == run.id))
    }
}
