//! Retries an ended run: a new run continues where the first one failed.

use std::sync::Arc;

use downbeat_core::ids::RunId;
use downbeat_core::level;
use downbeat_core::nearest::advice;
use downbeat_core::plan::{EntryIx, Plan, RetryScope, resolve_again};
use downbeat_core::run::RunRecord;
use downbeat_core::run::again::{entry_named, retry_of};
use downbeat_core::spec::Entry;

use super::patience::read_in_time;
use super::{IdempotencyKey, Service, Submitted};
use crate::caller::Caller;
use crate::error::{Conflict, Noun, Result};
use crate::runs::{Launch, Pages};

/// Which part of a run to execute again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redo {
    /// Everything that did not succeed.
    Failed,
    /// Everything that did not succeed on the nodes on which something failed.
    FailedNodes,
    /// Everything that did not succeed; also this task, by name or step number, and all tasks after it,
    /// even if they succeeded.
    From(String),
}

#[derive(Clone, Debug)]
pub struct Retry {
    pub run: RunId,
    pub redo: Redo,
    pub idempotency_key: Option<IdempotencyKey>,
}

impl Service {
    /// Creates a run that reuses the successful results of an ended one.
    pub async fn retry(&self, caller: &Caller, retry: Retry) -> Result<Submitted> {
        if let Some(repeated) = self.repeated_retry(&retry).await? {
            return Ok(repeated);
        }
        self.catch_up().await?;
        let first = read_in_time(self.run(caller, &retry.run)).await?;
        self.check_level(first.definition.level().max(level::FLEET))?;
        let (mut executions, mut pages) = (Vec::new(), Pages::of(&*self.parts.views, &first));
        while let Some(page) = read_in_time(async { Ok(pages.next().await?) }).await? {
            executions.extend(page);
        }
        let again = match &retry.redo {
            Redo::Failed => RetryScope::AllNodes,
            Redo::FailedNodes => RetryScope::FailedNodes,
            Redo::From(task) => RetryScope::From(find_entry(&first, task)?),
        };
        let nodes = self.known_nodes(Some(first.cluster));
        let (service, caller) = (self.clone(), caller.clone());
        let (definition, on) = (Arc::clone(&first.definition), nodes.len());
        let make = move || {
            let plan = Plan::compile(Arc::clone(&first.definition), Arc::clone(&first.resolved))?;
            let second = retry_of(&first, &plan, &executions, again).map_err(Conflict::from)?;
            let resolved = resolve_again(&first.definition, &first.params, &second.resolved, &nodes)?;
            let plan = Arc::new(Plan::compile(Arc::clone(&first.definition), Arc::new(resolved))?);
            let (params, key) = (first.params.clone(), retry.idempotency_key);
            let mut made = service.new_run(&caller, first.cluster, &plan, params, key);
            let taken = second.executions(&made.id, made.created_at, &mut service.parts.chance.dice());
            // A task that the caller names is executed again and not read from the cache.
            made.no_cache = first.no_cache || matches!(retry.redo, Redo::From(_));
            made.job_version = first.job_version;
            made.retry_of = Some(first.id.clone());
            Ok(Launch { made, plan, taken, firing: None, derived: false })
        };
        let new = self.by_size(&definition, on, make).await?;
        self.create(new).await
    }

    /// Returns the run of an earlier request if this is the same request.
    async fn repeated_retry(&self, retry: &Retry) -> Result<Option<Submitted>> {
        let repeated = self.repeated(retry.idempotency_key.as_ref()).await?;
        let former = retry.idempotency_key.as_ref().and_then(|key| key.former.as_ref());
        let Some(former) = former.filter(|_| repeated.is_none()) else { return Ok(repeated) };
        let runs = read_in_time(async { Ok(self.parts.store.runs_of_key(former).await?) }).await?;
        let is_same =
            |run: &RunRecord| run.request_hash.is_none() && run.retry_of.as_ref() == Some(&retry.run);
        Ok(runs.into_iter().find(is_same).map(|run| Submitted { run, created: false }))
    }
}

/// Returns the index of the entry that a name or a step number refers to.
fn find_entry(run: &RunRecord, task: &str) -> Result<EntryIx> {
    let definition = &run.definition;
    if let Some(entry) = entry_named(definition, task) {
        return Ok(entry);
    }
    let steps = (0..)
        .map(EntryIx)
        .zip(&definition.tasks)
        .flat_map(|(entry, of)| of.leaves().iter().map(move |_| entry));
    if let Some(entry) = task.parse().ok().and_then(|step: usize| steps.clone().nth(step)) {
        return Ok(entry);
    }
    let of_entry = |entry: &Entry| {
        let leaves = entry.leaves().iter().filter_map(|task| task.name.clone());
        entry.name().map(str::to_owned).into_iter().chain(leaves).collect::<Vec<_>>()
    };
    let mut names: Vec<String> = definition.tasks.iter().flat_map(of_entry).collect();
    names.dedup();
    let known = match names.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => format!(
            "its tasks have no names; use a step number from 0 to {}",
            steps.count().saturating_sub(1)
        ),
        names => advice(task, names, "tasks"),
    };
    Err(Noun::Task { run: run.id.clone(), task: task.to_owned(), known }.into())
}
