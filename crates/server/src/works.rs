//! Owns the work of all open executions, by origin. The plan of a run is compiled once, when this server
//! first learns of the run; actors, the board and the agents' host share it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use downbeat_core::collections::HashMap;
use downbeat_core::ids::{ClusterId, RunId};
use downbeat_core::plan::{self, Plan, StepIx};
use downbeat_core::run::{RunRecord, RunState};
use downbeat_core::work::{Origin, Work};
use downbeat_core::{Change, Event};
use downbeat_store::{self as store, Store};
use tracing::error;

use crate::heavy::{HeavyWork, is_heavy_run};

/// A handle; cheap to clone. The lock is never held while a plan is compiled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Works {
    runs: Arc<Mutex<HashMap<RunId, Arc<RunWork>>>>,
}

/// The plan of a run, and the work of those steps that were requested.
#[derive(Debug)]
pub(crate) struct RunWork {
    pub(crate) plan: Arc<Plan>,
    run: RunId,
    cluster: ClusterId,
    steps: Vec<OnceLock<Arc<Work>>>,
}

impl RunWork {
    pub(crate) fn new(run: RunId, cluster: ClusterId, plan: Arc<Plan>) -> Self {
        let steps = plan.steps.iter().map(|_| OnceLock::new()).collect();
        Self { plan, run, cluster, steps }
    }

    fn compile(run: &RunRecord) -> Result<Self, plan::Error> {
        let plan = Plan::compile(Arc::clone(&run.definition), Arc::clone(&run.resolved))?;
        Ok(Self::new(run.id.clone(), run.cluster, Arc::new(plan)))
    }

    /// Returns the work of a step, or `None` if the run has no such step.
    pub(crate) fn step(&self, step: u32) -> Option<&Arc<Work>> {
        let made = || Arc::new(Work::of_step(&self.plan, self.cluster, &self.run, StepIx(step)));
        self.steps.get(step as usize).map(|slot| slot.get_or_init(made))
    }
}

impl Works {
    fn runs(&self) -> MutexGuard<'_, HashMap<RunId, Arc<RunWork>>> {
        self.runs.lock().expect("nothing panics while it holds the works")
    }

    pub(crate) fn run(&self, run: &RunId) -> Option<Arc<RunWork>> {
        self.runs().get(run).cloned()
    }

    /// Returns the work of an open execution, or `None` if this server does not know its origin yet.
    pub(crate) fn get(&self, of: &Origin) -> Option<Arc<Work>> {
        match of {
            Origin::Step { run, step, .. } => self.runs().get(run)?.step(*step).cloned(),
        }
    }

    /// Like `get`, but reads the store if this server does not know the origin yet.
    pub(crate) async fn find(
        &self,
        of: &Origin,
        store: &dyn Store,
        heavy: &HeavyWork,
    ) -> Result<Option<Arc<Work>>, store::Error> {
        if let Some(work) = self.get(of) {
            return Ok(Some(work));
        }
        match of {
            Origin::Step { run, step, .. } => {
                let Some(record) = store.run(run).await? else { return Ok(None) };
                let is_heavy = is_heavy_run(&record);
                let compiled = heavy.run_own_if(is_heavy, move || RunWork::compile(&record)).await;
                let compiled = compiled.map_err(|error| store::Error::Unavailable(error.to_string()))?;
                let work = compiled.map_err(|error| not_compiled(run, &error))?;
                Ok(work.step(*step).cloned())
            }
        }
    }

    /// Returns the plan of a stored run. Compiles it only if this server does not have it.
    pub(crate) fn of_stored(&self, run: &RunRecord) -> Result<Arc<RunWork>, plan::Error> {
        self.run(&run.id).map_or_else(|| RunWork::compile(run).map(Arc::new), Ok)
    }

    pub(crate) fn insert(&self, work: Arc<RunWork>) {
        self.runs().insert(work.run.clone(), work);
    }

    pub(crate) fn remove(&self, run: &RunId) {
        self.runs().remove(run);
    }

    /// Adds the plans of new runs. Called before the board sees the events, which may hold executions of these runs.
    pub(crate) fn learn(&self, events: &[Event]) {
        for event in events {
            if let Change::RunCreated { run, .. } = &event.change {
                match self.of_stored(run) {
                    Ok(work) => self.insert(work),
                    Err(error) => error!("{}", not_compiled(&run.id, &error)),
                }
            }
        }
    }

    /// Drops the plans of ended runs. Called after the board has seen the events.
    pub(crate) fn forget(&self, events: &[Event]) {
        for event in events {
            if let Change::RunMoved { run, path, .. } = &event.change
                && path.last().copied().is_some_and(RunState::is_terminal)
            {
                self.remove(run);
            }
        }
    }
}

fn not_compiled(run: &RunId, error: &plan::Error) -> store::Error {
    store::Error::Corrupt(format!("cannot compile the plan of run `{run}`: {error}"))
}
