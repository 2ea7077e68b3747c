//! Owns the work of all open executions, by origin. The plan of a run is compiled once, when this server
//! first learns of the run; actors, the board and the agents' host share it.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use downbeat_core::cluster::ClusterRecord;
use downbeat_core::collections::HashMap;
use downbeat_core::ids::{ClusterId, RunId};
use downbeat_core::plan::{self, Plan, StepIx};
use downbeat_core::run::{RunRecord, RunState};
use downbeat_core::work::{Origin, Work};
use downbeat_core::{Change, Event};
use downbeat_store::{self as store, Store};
use tracing::error;

use crate::heavy::{HeavyWork, is_heavy_run};

/// The work of a cluster's standing tasks, by the number of the task.
type StandingWork = HashMap<u32, Arc<Work>>;

/// A handle; cheap to clone. The lock is never held while a plan is compiled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Works {
    runs: Arc<Mutex<HashMap<RunId, Arc<RunWork>>>>,
    /// The work of standing tasks, by the number of the task. Deleted ones may still run.
    standing: Arc<Mutex<HashMap<RunId, StandingWork>>>,
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

    fn standing(&self) -> MutexGuard<'_, HashMap<RunId, StandingWork>> {
        self.standing.lock().expect("nothing panics while it holds the works")
    }

    pub(crate) fn run(&self, run: &RunId) -> Option<Arc<RunWork>> {
        self.runs().get(run).cloned()
    }

    /// Returns the work of an open execution, or `None` if this server does not know its origin yet.
    pub(crate) fn get(&self, of: &Origin) -> Option<Arc<Work>> {
        match of {
            Origin::Step { run, step, .. } if is_standing(run) => {
                self.standing().get(run)?.get(step).cloned()
            }
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
            // Every server knows all clusters.
            Origin::Step { run, .. } if is_standing(run) => Ok(None),
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

    /// Adds the work of a cluster's standing tasks.
    pub(crate) fn set_list(&self, cluster: &ClusterRecord) {
        let tasks = cluster.list.tasks.iter().chain(&cluster.list.deleted);
        let works = tasks.map(|task| (task.number, Arc::new(Work::of_standing(cluster.id, task))));
        self.standing().insert(RunId::standing(cluster.id), works.collect());
    }

    /// Forgets a deleted cluster. Returns its runs.
    pub(crate) fn remove_cluster(&self, cluster: ClusterId) -> Vec<RunId> {
        self.standing().remove(&RunId::standing(cluster));
        let mut runs = self.runs();
        let of_cluster = |work: &&Arc<RunWork>| work.cluster == cluster;
        let removed: Vec<RunId> = runs.values().filter(of_cluster).map(|work| work.run.clone()).collect();
        removed.iter().for_each(|run| _ = runs.remove(run));
        removed
    }

    pub(crate) fn insert(&self, work: Arc<RunWork>) {
        self.runs().insert(work.run.clone(), work);
    }

    pub(crate) fn remove(&self, run: &RunId) {
        self.runs().remove(run);
    }

    /// Adds the plans of new runs. Called before the board sees the events, which may hold executions of these runs. A
    /// large plan of another server is compiled on its own thread, one at a time. It does not wait for the plans of users:
    /// the journal waits for it.
    pub(crate) async fn learn(&self, events: &[Event]) {
        for event in events {
            if let Change::ClusterCreated { cluster, .. } | Change::ClusterChanged { cluster, .. } =
                &event.change
            {
                self.set_list(cluster);
            }
            let Change::RunCreated { run, .. } = &event.change else { continue };
            if is_standing(&run.id) || self.run(&run.id).is_some() {
                continue;
            }
            let compiled = if is_heavy_run(run) {
                let record = run.clone();
                tokio::task::spawn_blocking(move || RunWork::compile(&record)).await
            } else {
                Ok(RunWork::compile(run))
            };
            match compiled {
                Ok(Ok(work)) => self.insert(Arc::new(work)),
                Ok(Err(error)) => error!("{}", not_compiled(&run.id, &error)),
                Err(error) => error!(run = %run.id, %error, "compiling the plan of a run panicked"),
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

/// Returns whether this is the run of a cluster's standing tasks.
fn is_standing(run: &RunId) -> bool {
    run.as_str().starts_with(RunId::STANDING)
}

fn not_compiled(run: &RunId, error: &plan::Error) -> store::Error {
    store::Error::Corrupt(format!("cannot compile the plan of run `{run}`: {error}"))
}

#[cfg(test)]
mod tests {
    use downbeat_core::change::About;
    use downbeat_core::ids::{NodeId, ServerId};
    use downbeat_core::plan::{NodeIx, NodeRef, Resolved, SetIx};
    use downbeat_core::run::RunMade;
    use downbeat_core::{Timestamp, limits};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    /// Returns the event of a run with this many steps on a hundred nodes.
    fn created(id: &str, steps: usize) -> Event {
        let task = json!({"backend": "test", "action": "noop"});
        let definition = json!({"target": "all", "tasks": vec![task; steps]});
        let node =
            |number: u128| NodeRef { id: NodeId(Uuid::from_u128(number)), hostname: format!("web-{number}") };
        let resolved = Resolved {
            nodes: (1..=100).map(node).collect(),
            sets: vec![NodeIx::first(100).collect()],
            entries: vec![Some(SetIx(0)); steps],
            ..Resolved::default()
        };
        let made = RunMade {
            id: RunId::from(id),
            cluster: ClusterId::DEFAULT,
            job: None,
            definition: Arc::new(serde_json::from_value(definition).unwrap()),
            resolved: Arc::new(resolved),
            params: Default::default(),
            retry_of: None,
            no_cache: false,
            job_version: None,
            by: "ada".to_owned(),
            idempotency_key: None,
            request_hash: None,
            created_at: Timestamp::UNIX_EPOCH,
        };
        let server = ServerId(Uuid::from_u128(9));
        let change = Change::RunCreated {
            run: RunRecord::new(made, server),
            max_pending: None,
            max_open: None,
            firing: None,
        };
        Event { seq: 1, server, about: About::default(), change }
    }

    #[tokio::test]
    async fn other_tasks_go_on_while_a_large_plan_of_another_server_is_compiled() {
        let works = Works::default();
        let events = [created("large", limits::PLAN_SMALL_INSTANCES / 100 + 1), created("small", 1)];
        // The runtime has one thread: the task runs only if it is free.
        let other = tokio::spawn(async {});
        works.learn(&events).await;
        assert!(other.is_finished());
        assert!(["large", "small"].iter().all(|run| works.run(&RunId::from(*run)).is_some()));
    }
}
