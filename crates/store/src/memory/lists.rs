//! Owns what the memory store reads of runs and executions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::Portion;
use downbeat_core::execution::{Execution, State as ExecutionState, Status};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId};
use downbeat_core::limits;
use downbeat_core::portion::json_bytes;
use downbeat_core::run::{RunBrief, RunRecord};
use downbeat_core::spec::Definition;
use jiff::Timestamp;

use super::store::MemoryStore;
use crate::instances::position;
use crate::port::{
    ExecutionFilter, Executions, InstanceCount, InstanceFacts, InstanceFilter, Listed, Page, Position,
    Result, RunFilter, RunKey, RunKind, Runs, StandingKey, StandingResult,
};
use crate::rows::Attempt;

#[async_trait]
impl Runs for MemoryStore {
    async fn run(&self, id: &RunId) -> Result<Option<RunRecord>> {
        Ok(self.lock().run(id))
    }

    async fn runs_by_id(&self, ids: &[RunId]) -> Result<Vec<RunRecord>> {
        let ids: BTreeSet<&RunId> = ids.iter().collect();
        let state = self.lock();
        Ok(ids.into_iter().filter_map(|id| state.run(id)).collect())
    }

    async fn runs_of_key(&self, key: &str) -> Result<Vec<RunRecord>> {
        let state = self.lock();
        let keys = state.tables.keys.iter().filter(|((_, known), _)| known == key);
        let ids: BTreeSet<&RunId> = keys.map(|(_, run)| run).collect();
        Ok(ids.into_iter().filter_map(|id| state.run(id)).collect())
    }

    async fn runs(&self, filter: &RunFilter, page: &Page<RunKey>) -> Result<Listed<RunBrief, RunKey>> {
        let state = self.lock();
        let of_node: Option<BTreeSet<&RunId>> = filter.node.map(|node| {
            let executions = state.tables.executions.values().rev();
            let of_node = executions.filter(|execution| execution.node() == Some(node));
            of_node.take(limits::ROWS_READ as usize).map(Execution::run).collect()
        });
        let mut runs = state.runs(|run| {
            is_listed(filter, run)
                && !run.id.is_standing()
                && !state.removed_clusters.contains(&run.cluster)
                && of_node.as_ref().is_none_or(|of| of.contains(&run.id))
        });
        let order = filter.order;
        runs.retain(|run| !order.is_by_end() || run.live.is_ended());
        let mut runs: Vec<RunBrief> = runs.iter().map(RunBrief::from).collect();
        let key = |run: &RunBrief| RunKey::of(run, order);
        let compare = |a: &RunKey, b: &RunKey| {
            let ascending = (a.at, &a.id).cmp(&(b.at, &b.id));
            if order.is_ascending() { ascending } else { ascending.reverse() }
        };
        runs.sort_by(|a, b| compare(&key(a), &key(b)));
        Ok(window(runs, page, key, |key, after| compare(key, after).is_gt()))
    }

    async fn definitions(&self, runs: &[RunId]) -> Result<BTreeMap<RunId, Arc<Definition>>> {
        let state = self.lock();
        let definition = |id: &RunId| Some((id.clone(), Arc::clone(&state.made.get(id)?.definition)));
        Ok(runs.iter().filter_map(definition).collect())
    }

    async fn open_runs(&self) -> Result<Vec<RunRecord>> {
        let state = self.lock();
        Ok(state.runs(|run| !run.live.is_ended() && !state.removed_clusters.contains(&run.cluster)))
    }

    async fn open_run_owners(&self) -> Result<Vec<(RunId, ServerId)>> {
        Ok(self.open_runs().await?.into_iter().map(|run| (run.id.clone(), run.live.owner)).collect())
    }
}

#[async_trait]
impl Executions for MemoryStore {
    async fn execution(&self, id: ExecutionId) -> Result<Option<Execution>> {
        Ok(self.lock().tables.executions.get(&id).cloned())
    }

    async fn executions_by_id(&self, ids: &[ExecutionId]) -> Result<Vec<Execution>> {
        let ids: BTreeSet<&ExecutionId> = ids.iter().collect();
        let state = self.lock();
        Ok(ids.into_iter().filter_map(|id| state.tables.executions.get(id).cloned()).collect())
    }

    async fn executions(
        &self,
        filter: &ExecutionFilter,
        page: &Page<ExecutionId>,
    ) -> Result<Listed<Execution, ExecutionId>> {
        let rows = self.lock().executions(|execution| {
            filter.run.as_ref().is_none_or(|run| execution.run() == run)
                && filter.node.is_none_or(|node| execution.node() == Some(node))
                && filter.step.is_none_or(|step| execution.step() == step)
                && filter.item.is_none_or(|item| execution.item() == Some(item))
                && (filter.statuses.is_empty() || filter.statuses.contains(&execution.state.status()))
        });
        Ok(window(rows, page, |execution| execution.id, |key, after| key > after))
    }

    async fn bare_executions_by_id(&self, ids: &[ExecutionId]) -> Result<Vec<Execution>> {
        Ok(self.executions_by_id(ids).await?.into_iter().map(bare).collect())
    }

    async fn bare_executions(
        &self,
        filter: &ExecutionFilter,
        page: &Page<ExecutionId>,
    ) -> Result<Listed<Execution, ExecutionId>> {
        let Listed { rows, total, next } = self.executions(filter, page).await?;
        Ok(Listed { rows: rows.into_iter().map(bare).collect(), total, next })
    }

    async fn executions_of(&self, run: &RunId) -> Result<Vec<Execution>> {
        let state = self.lock();
        let round = state.last_round(run);
        Ok(state.executions(|execution| execution.run() == run && execution.round == round))
    }

    async fn instances(
        &self,
        run: &RunId,
        filter: &InstanceFilter,
        portion: Portion,
    ) -> Result<Vec<Execution>> {
        let state = self.lock();
        let (start, last) = filter.span();
        let is_wanted = |execution: &&&Execution| {
            position(execution) > start
                && execution.step() <= last
                && filter.item.is_none_or(|item| execution.item() == Some(item))
                && filter.node.is_none_or(|node| execution.node() == Some(node))
                && filter.wanted().any(|status| status == execution.state.status())
        };
        let mut bytes = 0;
        let fits = |execution: &&&Execution| {
            let before = bytes;
            let outputs = execution.state.outcome().map(|outcome| &outcome.outputs);
            bytes += outputs.filter(|outputs| !outputs.is_empty()).map_or(0, json_bytes);
            before <= portion.bytes
        };
        let results = state.results(run);
        let found = results.iter().filter(is_wanted).take(portion.rows).take_while(fits);
        Ok(found.map(|execution| Execution { params: None, ..(*execution).clone() }).collect())
    }

    async fn instance_counts(&self, run: &RunId) -> Result<Vec<InstanceCount>> {
        let state = self.lock();
        let mut counts: BTreeMap<(u32, Status), InstanceCount> = BTreeMap::new();
        for execution in state.results(run) {
            let (step, status) = (execution.step(), execution.state.status());
            let none = InstanceCount { step, status, total: 0, carried: 0, cached: 0 };
            let count = counts.entry((step, status)).or_insert(none);
            count.total += 1;
            count.carried += u64::from(execution.is_carried());
            count.cached += u64::from(execution.is_cached());
        }
        Ok(counts.into_values().collect())
    }

    async fn run_counts(&self, runs: &[RunId]) -> Result<BTreeMap<RunId, BTreeMap<Status, u64>>> {
        let state = self.lock();
        let mut counts = BTreeMap::new();
        for run in runs.iter().filter(|run| state.tables.runs.contains_key(run)) {
            let own: &mut BTreeMap<Status, u64> = counts.entry(run.clone()).or_default();
            own.clear();
            for execution in state.results(run) {
                *own.entry(execution.state.status()).or_default() += 1;
            }
        }
        Ok(counts)
    }

    async fn instance_facts(&self, run: &RunId) -> Result<Vec<InstanceFacts>> {
        let state = self.lock();
        let mut results = state.results(run);
        results.sort_unstable_by_key(|execution| execution.id);
        Ok(results.into_iter().map(|execution| Attempt::from(execution).facts).collect())
    }

    async fn instance_facts_on(&self, run: &RunId, nodes: &[NodeId]) -> Result<Vec<InstanceFacts>> {
        let facts = self.instance_facts(run).await?;
        Ok(facts.into_iter().filter(|fact| fact.node.is_some_and(|node| nodes.contains(&node))).collect())
    }

    async fn placed_nodes(&self, run: &RunId) -> Result<Vec<NodeId>> {
        let state = self.lock();
        let placed = state.results(run).into_iter().filter(|execution| execution.pinned.is_none());
        let nodes: BTreeSet<NodeId> = placed.filter_map(Execution::node).collect();
        Ok(nodes.into_iter().collect())
    }

    async fn unsuccessful_nodes(&self, run: &RunId) -> Result<Vec<(NodeId, Status)>> {
        let facts = self.instance_facts(run).await?;
        let is_wanted = |status| matches!(status, Status::Failed | Status::Lost | Status::Cancelled);
        let wanted = facts.into_iter().filter(|fact| is_wanted(fact.status));
        let nodes: BTreeSet<(NodeId, Status)> =
            wanted.filter_map(|fact| Some((fact.node?, fact.status))).collect();
        Ok(nodes.into_iter().collect())
    }

    async fn standing_results(
        &self,
        cluster: Option<ClusterId>,
        after: Option<&StandingKey>,
        most: u32,
    ) -> Result<Vec<StandingResult>> {
        let state = self.lock();
        let mut all: BTreeMap<StandingKey, BTreeMap<u32, &Execution>> = BTreeMap::new();
        for execution in state.tables.executions.values() {
            let (run, Some(node)) = (execution.run(), execution.pinned) else { continue };
            let is_wanted = match (run.standing_of(), cluster) {
                (None, _) => false,
                (Some(of), cluster) => cluster.is_none_or(|cluster| of == cluster),
            };
            let key = StandingKey { run: run.clone(), step: execution.step(), node };
            if is_wanted && after.is_none_or(|after| key > *after) {
                all.entry(key).or_default().entry(execution.attempt).or_insert(execution);
            }
        }
        let last = all.into_values().filter_map(|attempts| {
            let (number, last) = attempts.last_key_value()?;
            let earlier = number.checked_sub(1).and_then(|before| attempts.get(&before)?.former);
            StandingResult::of(last, earlier)
        });
        Ok(last.take(most as usize).collect())
    }

    async fn open_executions(&self) -> Result<Vec<Execution>> {
        Ok(self.lock().executions(|execution| execution.state.status().is_open()))
    }

    async fn held_by(&self, nodes: &[NodeId]) -> Result<Vec<Execution>> {
        Ok(self.lock().executions(|execution| {
            matches!(execution.state.status(), Status::Leased | Status::Running)
                && execution.state.lease().is_some_and(|lease| nodes.contains(&lease.node))
        }))
    }

    async fn cached(&self, cluster: ClusterId, keys: &[Arc<str>]) -> Result<BTreeMap<Arc<str>, Execution>> {
        let state = self.lock();
        let mut newest: BTreeMap<Arc<str>, ((Timestamp, ExecutionId), Execution)> = BTreeMap::new();
        for execution in state.tables.executions.values().filter(|execution| execution.reused.is_none()) {
            let Some(key) = execution.cache_key.as_ref().filter(|key| keys.contains(key)) else { continue };
            let ExecutionState::Succeeded { outcome, .. } = &execution.state else { continue };
            let age = (outcome.ended_at(), execution.id);
            if state.tables.homes.get(execution.run()).is_some_and(|home| home.cluster == cluster)
                && newest.get(key).is_none_or(|(other, _)| age > *other)
            {
                newest.insert(Arc::clone(key), (age, execution.clone()));
            }
        }
        Ok(newest.into_iter().map(|(key, (_, execution))| (key, execution)).collect())
    }
}

/// Returns whether a run matches a filter, except for its node.
fn is_listed(filter: &RunFilter, run: &RunRecord) -> bool {
    let contains = |text: &str| {
        let part = filter.text.as_deref().unwrap_or_default().to_ascii_lowercase();
        text.to_ascii_lowercase().contains(&part)
    };
    let is_paused = run.live.paused_at.is_some() && !run.live.is_ended();
    run.id.is_debug() == (filter.kind == RunKind::Debug)
        && filter.cluster.is_none_or(|cluster| run.cluster == cluster)
        && (filter.states.is_empty() || filter.states.contains(&run.state()))
        && (filter.job.is_none() || run.job == filter.job)
        && filter.by.as_ref().is_none_or(|by| run.by == *by)
        && filter.paused.is_none_or(|paused| paused == is_paused)
        && (contains(run.id.as_str()) || run.job.as_deref().is_some_and(contains))
        && filter.from.is_none_or(|from| run.created_at >= from)
        && filter.to.is_none_or(|to| run.created_at < to)
}

/// Returns an execution without its params and outputs.
fn bare(mut execution: Execution) -> Execution {
    execution.params = None;
    let outcome = match &mut execution.state {
        ExecutionState::Succeeded { outcome, .. } => Some(outcome),
        ExecutionState::Failed { outcome, .. } | ExecutionState::Cancelled { outcome, .. } => {
            outcome.as_mut()
        }
        _ => None,
    };
    if let Some(outcome) = outcome {
        outcome.outputs.clear();
    }
    execution
}

/// Cuts a page out of a sorted list. `is_after` returns whether a key comes after another one.
fn window<T, K>(
    mut rows: Vec<T>,
    page: &Page<K>,
    key: impl Fn(&T) -> K,
    is_after: impl Fn(&K, &K) -> bool,
) -> Listed<T, K> {
    let total = page.start.after.is_none().then_some(rows.len() as u64);
    if let Some(after) = &page.start.after {
        rows.retain(|row| is_after(&key(row), after));
    }
    let skip = usize::try_from(page.start.skip).unwrap_or(usize::MAX);
    let limit = page.limit as usize;
    let has_more = rows.len() > skip.saturating_add(limit);
    let rows: Vec<T> = rows.into_iter().skip(skip).take(limit).collect();
    let next = rows.last().map(|row| Position::after(key(row))).filter(|_| has_more);
    Listed { rows, total: total.filter(|total| *total <= u64::from(limits::ROWS_READ)), next }
}
