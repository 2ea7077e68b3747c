//! The server's service: what people and programs can ask of it, whatever door they come through.

mod waits;

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::backend::{Catalogue, Params};
use downbeat_core::collections::HashMap;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId};
use downbeat_core::level;
use downbeat_core::nearest::advice;
use downbeat_core::node::{NodeRecord, Tombstone};
use downbeat_core::plan::{EntryIx, Plan, StepIx, resolve, resolve_again, silent_nodes};
use downbeat_core::run::again::{Again, entry_named, retry_of};
use downbeat_core::run::engine::{Progress, Turn};
use downbeat_core::run::{Resolved, RunRecord, RunState};
use downbeat_core::spec::{Definition, Entry};
use downbeat_core::{Applied, Change, Refusal, Timestamp, expr, limits};
use downbeat_proto::message::Fault;
use downbeat_store::Store;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, info};

use crate::admission::Admission;
use crate::clock::Clock;
use crate::cluster::{CommonLevel, Standing};
use crate::dispatch::Dispatcher;
use crate::error::Error;
use crate::heavy::HeavyWork;
use crate::journal::{Feed, Journal};
use crate::metrics::Metrics;
use crate::nodes::{self, Force, Heartbeats, Serving};
use crate::output::Outputs;
use crate::replica::Following;
use crate::runs::{Cache, Means, Runs, Start, Waits, refused_for_nodes, release, reserve};
use crate::settings::Settings;
use crate::surroundings::Chance;

pub(crate) use waits::NodeWaits;

/// The parts of one server, as its rooms share them. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub store: Arc<dyn Store>,
    pub journal: Journal,
    pub feed: Feed,
    pub dispatcher: Dispatcher,
    pub admission: Admission,
    pub runs: Runs,
    pub heartbeats: Heartbeats,
    pub serving: Serving,
    pub outputs: Outputs,
    pub metrics: Metrics,
    pub settings: Arc<Settings>,
    pub server: ServerId,
    pub name: Arc<str>,
    pub started_at: Timestamp,
    pub clock: Clock,
    pub chance: Chance,
    pub standing: Standing,
    pub level: CommonLevel,
    pub heavy: HeavyWork,
    /// What a replica knows of its primary; nothing on a primary.
    pub replica: Option<Following>,
    /// No new requests; streams end.
    pub closing: CancellationToken,
    /// Names this server in every line that it logs.
    pub span: Span,
}

impl Parts {
    /// What the actor of a run works with.
    pub(crate) fn means(&self, run: &RunRecord, plan: &Arc<Plan>) -> Means {
        let cache = Cache::of(&self.store, run, plan);
        Means { journal: self.journal.clone(), dispatcher: self.dispatcher.clone(), cache }
    }

    /// Commits on behalf of an agent.
    pub(crate) async fn commit(&self, changes: Vec<Change>) -> Result<Vec<Applied>, Fault> {
        self.journal.commit(changes).await.map_err(|lost| Fault::Unavailable(lost.to_string()))
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Service {
    parts: Parts,
}

/// A run that somebody wants.
#[derive(Clone, Debug)]
pub struct Submit {
    pub definition: Definition,
    /// Values for the job's params; the rest are its defaults.
    pub params: Params,
    /// Nothing is to be taken from the cache.
    pub no_cache: bool,
    pub idempotency_key: Option<String>,
    /// Who asks.
    pub by: String,
}

/// What of a run is to be done again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redo {
    /// What did not succeed.
    Failed,
    /// The same, only on the nodes on which something failed.
    FailedNodes,
    /// The same, and this task with all that follows it, however they ended. By name, or by the number of a step.
    From(String),
}

/// A run that is to be tried again.
#[derive(Clone, Debug)]
pub struct Retry {
    pub run: RunId,
    pub redo: Redo,
    pub idempotency_key: Option<String>,
    /// Who asks.
    pub by: String,
}

/// The run that came of it.
#[derive(Clone, Debug)]
pub struct Submitted {
    pub run: RunRecord,
    /// False: the idempotency key returned the first run.
    pub created: bool,
}

/// A run that is to be committed and started.
struct Create {
    run: RunRecord,
    plan: Arc<Plan>,
    /// What it takes over from an earlier run.
    taken: Vec<Execution>,
}

/// Whether a node is to take new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    On,
    Off,
}

/// How long a request waits for the store.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for what is read from the store.
async fn answered<T>(reading: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| {
        let seconds = PATIENCE.as_secs();
        Err(Error::Unavailable(format!(
            "the store has not answered for {seconds} s; nothing was done: try again"
        )))
    })
}

/// Waits for what changes something. It may happen all the same, later.
async fn patiently<T>(work: impl Future<Output = T>) -> Result<T, Error> {
    tokio::time::timeout(PATIENCE, work).await.map_err(|_| {
        let seconds = PATIENCE.as_secs();
        Error::Unavailable(format!(
            "the store has not answered for {seconds} s; what was asked for may still happen: look before asking \
             again, or use an Idempotency-Key"
        ))
    })
}

/// What a new run takes over from an earlier one.
fn taking_over(run: &RunRecord, taken: &[Execution]) -> impl Iterator<Item = Change> {
    taken.chunks(limits::EXECUTIONS_PER_CHANGE).map(|executions| Change::ExecutionsAdded {
        run: run.id.clone(),
        epoch: run.epoch,
        executions: executions.to_vec(),
        at: run.created_at,
    })
}

/// The entry that somebody means by a name, or by the number of a step.
fn entry_called(run: &RunRecord, task: &str) -> Result<EntryIx, Error> {
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
        [] => format!("its tasks have no names, and steps from 0 to {}", steps.count().saturating_sub(1)),
        names => advice(task, names, "tasks"),
    };
    Err(Error::NotFound(format!("run `{}` has no task `{task}`; {known}", run.id)))
}

impl Service {
    pub(crate) fn new(parts: Parts) -> Self {
        Self { parts }
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.parts.store
    }

    /// The compiled plan of a run that has not ended, as far as this server has it.
    pub fn open_plan(&self, run: &RunId) -> Option<Arc<Plan>> {
        self.parts.dispatcher.board().plan(run).cloned()
    }

    pub fn feed(&self) -> &Feed {
        &self.parts.feed
    }

    pub fn metrics(&self) -> &Metrics {
        &self.parts.metrics
    }

    pub fn settings(&self) -> &Settings {
        &self.parts.settings
    }

    pub fn server_id(&self) -> ServerId {
        self.parts.server
    }

    pub fn server_name(&self) -> &str {
        &self.parts.name
    }

    /// The time that counts among servers.
    pub fn now(&self) -> Timestamp {
        self.parts.clock.now()
    }

    pub fn started_at(&self) -> Timestamp {
        self.parts.started_at
    }

    pub(crate) fn span(&self) -> &Span {
        &self.parts.span
    }

    /// Cancelled when open streams are to end: the server stops, or the copy that they are read from is made anew.
    pub fn streams(&self) -> CancellationToken {
        self.replica().map_or_else(|| self.parts.closing.clone(), Following::streams)
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// What this server knows of its primary, if it is a replica.
    pub(crate) fn replica(&self) -> Option<&Following> {
        self.parts.replica.as_ref()
    }

    /// Whether it makes sense to send requests here.
    pub async fn readiness(&self) -> Result<(), String> {
        if self.parts.closing.is_cancelled() {
            return Err("the server is stopping".to_owned());
        }
        self.store_problem().await.map_or(Ok(()), Err)?;
        self.replica().map_or(Ok(()), |replica| replica.readiness(self.parts.clock.now()))
    }

    /// Why the store cannot be relied on now. Nothing: it can.
    pub(crate) async fn store_problem(&self) -> Option<String> {
        if let Err(error) = self.parts.store.health().await {
            return Some(error.to_string());
        }
        if self.replica().is_some() {
            // A replica commits nothing and gives no signs of life.
            return None;
        }
        let signs = self.parts.standing.is_good(self.parts.settings.server_stale_after.0);
        let silent = || (!signs).then(|| "the store does not answer".to_owned());
        self.parts.journal.trouble().or_else(silent)
    }

    /// Brings those figures up to date that are read off the server's state when somebody asks for them.
    pub(crate) async fn take_stock(&self) {
        let metrics = &self.parts.metrics;
        {
            let board = self.parts.dispatcher.board();
            metrics.set_queue_depth(board.waiting() as u64);
            metrics.set_parked(board.parked() as u64);
            metrics.set_nodes(board.nodes().map(|node| node.status));
            let named = board.nodes().map(|node| (node.id, node.description.hostname.clone()));
            metrics.name_nodes(named.collect());
            metrics.set_held_nodes(board.held_nodes() as u64);
        }
        metrics.set_runs_waiting(self.parts.admission.waiting() as u64);
        if let Some(replica) = self.replica() {
            metrics.set_replica(&replica.lag(self.parts.clock.now()));
        }
        // Read first: what is published in between must not look like a negative lag.
        let published = self.parts.feed.last_seq();
        if let Ok(committed) = self.parts.store.last_seq().await {
            metrics.set_feed_lag(committed.saturating_sub(published));
        }
    }

    /// How many nodes say that something is wrong with them.
    pub(crate) fn nodes_with_problems(&self) -> u64 {
        let board = self.parts.dispatcher.board();
        board.nodes().filter(|node| !node.problems.is_empty()).count() as u64
    }

    /// Announces executions whose output grew.
    pub fn output_grown(&self) -> broadcast::Receiver<ExecutionId> {
        self.parts.outputs.grown()
    }

    /// The cluster that a definition is for.
    async fn cluster(&self, definition: &Definition) -> Result<ClusterId, Error> {
        match &definition.cluster {
            None => Ok(ClusterId::DEFAULT),
            Some(name) => {
                let found = self.parts.store.cluster(name).await?;
                found.ok_or_else(|| {
                    let advice = advice(name, &["default"], "clusters");
                    Error::NotFound(format!("there is no cluster `{name}`; {advice}"))
                })
            }
        }
    }

    /// The backends that a definition may name: the built-in ones, and those that nodes declare.
    pub fn catalogue(&self, cluster: ClusterId) -> Arc<Catalogue> {
        self.parts.dispatcher.board().catalogue(cluster)
    }

    fn nodes_of(&self, cluster: ClusterId) -> Vec<Arc<NodeRecord>> {
        self.parts.dispatcher.board().nodes().filter(|node| node.cluster == cluster).cloned().collect()
    }

    /// The run's nodes that are stale, offline or deleted now, by hostname, each with what becomes of its steps.
    pub fn silent_nodes(&self, resolved: &Resolved) -> Vec<(String, &'static str)> {
        let board = self.parts.dispatcher.board();
        silent_nodes(resolved, |id| board.node(id).map(|node| node.status))
    }

    /// Makes a plan, and of it what the caller wants to have.
    async fn compile<T: Send + 'static>(
        &self,
        cluster: ClusterId,
        definition: Arc<Definition>,
        params: &Params,
        show: impl FnOnce(Plan) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let targeted = definition.target.is_some()
            || definition.tasks.iter().any(|entry| entry.leaves().iter().any(|task| task.target.is_some()));
        let nodes = if targeted { self.nodes_of(cluster) } else { Vec::new() };
        let (on, params) = (nodes.len(), params.clone());
        let asked = Arc::clone(&definition);
        let make = move || {
            let resolved = Arc::new(resolve(&definition, &params, &nodes)?);
            Ok(show(Plan::compile(definition, resolved)?))
        };
        self.by_size(&asked, on, make).await
    }

    /// A large plan is made where that holds up nobody, and waits for its place there; for a small one the way there
    /// would cost more.
    async fn by_size<T: Send + 'static>(
        &self,
        definition: &Definition,
        nodes: usize,
        make: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let steps = definition.steps().count();
        if steps.saturating_mul(nodes.max(1)) <= limits::PLAN_SMALL_INSTANCES {
            make()
        } else {
            self.parts.heavy.run(make).await?
        }
    }

    /// A node that is registered is targeted, whichever server took it in: what others have committed by now is known
    /// here before anything is decided by it.
    async fn catch_up(&self) -> Result<(), Error> {
        if !self.parts.store.is_shared() {
            return Ok(());
        }
        let reached = async {
            let committed = self.parts.store.last_seq().await?;
            self.parts.feed.reached(committed).await;
            Ok(())
        };
        answered(reached).await
    }

    /// Plans what would run where and in which order, and returns what `show` makes of it. Starts nothing.
    pub async fn plan<T: Send + 'static>(
        &self,
        definition: Definition,
        params: &Params,
        show: impl FnOnce(Plan) -> T + Send + 'static,
    ) -> Result<T, Error> {
        self.catch_up().await?;
        let params = expr::given(&definition, params).map_err(Error::Params)?;
        let cluster = self.cluster(&definition).await?;
        self.compile(cluster, Arc::new(definition), &params, show).await
    }

    /// Makes the plan of a stored run again, and returns what `show` makes of it.
    pub async fn plan_of<T: Send + 'static>(
        &self,
        run: RunRecord,
        show: impl FnOnce(Plan) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let definition = Arc::clone(&run.definition);
        let nodes = run.resolved.nodes.len();
        let make = move || {
            let plan = Plan::compile(run.definition, run.resolved);
            let again =
                |error| Error::Bug(format!("cannot compile the plan of run `{}` again: {error}", run.id));
            Ok(show(plan.map_err(again)?))
        };
        self.by_size(&definition, nodes, make).await
    }

    /// Creates a run, and starts it in the same commit. When the caller goes away before the plan is made, nothing
    /// happens.
    pub async fn submit(&self, submit: Submit) -> Result<Submitted, Error> {
        self.check_level(submit.definition.level())?;
        self.catch_up().await?;
        let cluster = answered(self.cluster(&submit.definition)).await?;
        let params = expr::given(&submit.definition, &submit.params).map_err(Error::Params)?;
        let plan = self.compile(cluster, Arc::new(submit.definition), &params, Arc::new).await?;
        let mut run = self.new_record(cluster, &plan, params, submit.by, submit.idempotency_key);
        run.no_cache = submit.no_cache;
        self.create(Create { run, plan, taken: Vec::new() }).await
    }

    /// Creates a run that goes on where an ended one failed: what succeeded there is taken over.
    pub async fn retry(&self, retry: Retry) -> Result<Submitted, Error> {
        self.catch_up().await?;
        let first = answered(async { Ok(self.parts.store.run(&retry.run).await?) }).await?;
        let first = first.ok_or_else(|| Error::NotFound(format!("run `{}` does not exist", retry.run)))?;
        self.check_level(first.definition.level().max(level::FLEET))?;
        let executions = answered(async { Ok(self.parts.store.executions_of(&first.id).await?) }).await?;
        let again = match &retry.redo {
            Redo::Failed => Again::AllNodes,
            Redo::FailedNodes => Again::FailedNodes,
            Redo::From(task) => Again::From(entry_called(&first, task)?),
        };
        let nodes = self.nodes_of(first.cluster);
        let (service, definition, on) = (self.clone(), Arc::clone(&first.definition), nodes.len());
        let make = move || {
            let plan = Plan::compile(Arc::clone(&first.definition), Arc::clone(&first.resolved))?;
            let second = retry_of(&first, &plan, &executions, again);
            let second = second.map_err(|refused| Error::Conflict(refused.to_string()))?;
            let resolved = resolve_again(&first.definition, &first.params, &second.resolved, &nodes)?;
            let plan = Arc::new(Plan::compile(Arc::clone(&first.definition), Arc::new(resolved))?);
            let (by, key) = (retry.by, retry.idempotency_key);
            let mut run = service.new_record(first.cluster, &plan, first.params.clone(), by, key);
            let taken = second.executions(&run.id, run.created_at, &mut service.parts.chance.dice());
            // What is asked for again is done again, and not looked up.
            run.no_cache = first.no_cache || matches!(retry.redo, Redo::From(_));
            run.retry_of = Some(first.id.clone());
            Ok(Create { run, plan, taken })
        };
        let create = self.by_size(&definition, on, make).await?;
        self.create(create).await
    }

    /// Goes on when the caller goes away: a run that is committed has an actor.
    async fn create(&self, create: Create) -> Result<Submitted, Error> {
        let service = self.clone();
        let created = tokio::spawn(async move { service.launch(create).await }.in_current_span());
        patiently(created).await?.map_err(|error| Error::Bug(format!("cannot create a run: {error}")))?
    }

    fn new_record(
        &self,
        cluster: ClusterId,
        plan: &Plan,
        params: Params,
        by: String,
        idempotency_key: Option<String>,
    ) -> RunRecord {
        let now = self.parts.clock.now();
        RunRecord {
            id: RunId::from(self.parts.chance.dice().uuid_at(now)),
            cluster,
            job: plan.definition.name.clone(),
            state: RunState::Pending,
            definition: Arc::clone(&plan.definition),
            resolved: Arc::clone(&plan.resolved),
            by,
            idempotency_key,
            created_at: now,
            started_at: None,
            finished_at: None,
            end: None,
            cancel_requested_at: None,
            owner: self.parts.server,
            epoch: 1,
            params,
            retry_of: None,
            paused_at: None,
            admitted_at: None,
            no_cache: false,
        }
    }

    /// Commits a new run with what it takes over from an earlier one, and starts it.
    async fn launch(&self, Create { mut run, plan, taken }: Create) -> Result<Submitted, Error> {
        let parts = &self.parts;
        let (id, cluster, now) = (run.id.clone(), run.cluster, run.created_at);
        let mut dice = parts.chance.dice();
        // Open before the first decision: a node that goes offline from here on is heard of.
        let mailbox = parts.runs.open(&id);
        let mut progress = if taken.is_empty() {
            Progress::new(Arc::clone(&plan), id.clone(), run.epoch, run.state)
                .with_params(Arc::new(run.params.clone()))
        } else {
            Progress::restore(Arc::clone(&plan), &run, run.epoch, &taken, None)
        };
        let waits = self.has_to_wait(&run.definition);
        if !waits {
            let reach = |node: NodeId| parts.dispatcher.board().reach(node);
            let fits = |step: StepIx| parts.dispatcher.fits(&id, step);
            let facts = |node: NodeId| parts.dispatcher.facts(node);
            progress.begin(&mut Turn { now, dice: &mut dice, reach: &reach, facts: &facts, fits: &fits });
        }
        // All are created waiting. Those that there is room for do not count.
        let max_pending =
            waits.then(|| parts.settings.max_pending_runs.saturating_add(parts.admission.room()));
        let mut changes = vec![Change::RunCreated { run: run.clone(), max_pending }];
        changes.extend(taking_over(&run, &taken));
        changes.extend(progress.take_changes(now));
        let means = parts.means(&run, &plan);
        if let Some(cache) = &means.cache {
            cache.answer(&mut changes, now).await;
        }
        parts.dispatcher.board().add_plan(id.clone(), cluster, plan);
        reserve(&parts.dispatcher, &mut changes, now, &mut dice);
        let outcomes = match parts.journal.commit(changes.clone()).await {
            Ok(outcomes) => outcomes,
            Err(lost) => {
                release(&parts.dispatcher, &mut changes);
                parts.dispatcher.board().drop_plan(&id);
                return Err(Error::Unavailable(lost.to_string()));
            }
        };
        if let Err(refusal) = &outcomes[0] {
            release(&parts.dispatcher, &mut changes);
            parts.dispatcher.board().drop_plan(&id);
            return self.not_created(refusal).await;
        }
        let again = refused_for_nodes(&parts.dispatcher, changes, &outcomes);
        let (steps, nodes) = (run.definition.tasks.len(), run.resolved.nodes.len());
        info!(run = %id, job = run.job, tasks = steps, nodes, reused = taken.len(), waits, "run created");
        let start = if waits {
            Start::Waiting(Waits::ToBegin)
        } else {
            run.state = RunState::Running;
            run.started_at = Some(now);
            Start::Begun { at: now, again }
        };
        if !progress.is_ended() {
            parts.runs.start(mailbox, progress, start, means, dice.next_u64());
            if waits {
                parts.admission.wake();
            }
        } else if let Some(stored) = parts.store.run(&id).await? {
            run = stored;
        }
        Ok(Submitted { run, created: true })
    }

    async fn not_created(&self, refusal: &Refusal) -> Result<Submitted, Error> {
        match refusal {
            Refusal::KeyInUse(first) => {
                let run = self.parts.store.run(first).await?;
                let run = run.ok_or_else(|| Error::Conflict(format!("run `{first}` was just removed")))?;
                Ok(Submitted { run, created: false })
            }
            Refusal::QueueFull { pending } => {
                let most = self.parts.settings.max_pending_runs;
                Err(Error::TooMany(format!(
                    "no more than {most} runs may wait for their turn (max_pending_runs), and {pending} do; try again \
                     later"
                )))
            }
            other => Err(Error::Bug(format!("a new run was refused: {other}"))),
        }
    }

    /// A server from before would walk the plan as if it did not say what it does not know.
    fn check_level(&self, level: u32) -> Result<(), Error> {
        if self.parts.level.reaches(level) {
            return Ok(());
        }
        Err(Error::Unavailable(
            "this needs what an older server that shares the store does not know; upgrade all servers, or try again \
             when it is gone"
                .to_owned(),
        ))
    }

    /// Whether a run begins only when it is let in. While an older server lives, which knows nothing of that, there is
    /// no limit.
    fn has_to_wait(&self, definition: &Definition) -> bool {
        let is_gated = definition.exclusive || self.parts.settings.max_concurrent_runs.is_some();
        is_gated && self.parts.level.reaches(level::FLEET)
    }

    /// Why a run waits for its turn, if it does.
    pub fn pending_reason(&self, run: &RunRecord) -> Option<String> {
        self.pending_reasons(std::slice::from_ref(run)).remove(&run.id)
    }

    /// Why each of these runs waits for its turn, of those that do.
    pub fn pending_reasons(&self, runs: &[RunRecord]) -> HashMap<RunId, String> {
        let waits = |run: &RunRecord| run.state == RunState::Pending;
        if !runs.iter().any(waits) {
            return HashMap::default();
        }
        let mut reasons = self.parts.admission.reasons();
        let told = runs.iter().filter_map(|run| Some((run.id.clone(), reasons.remove(&run.id)?.to_string())));
        told.collect()
    }

    /// Begins nothing more of a run until it is resumed. What runs ends.
    pub async fn pause(&self, run: &RunId, by: &str) -> Result<(), Error> {
        self.set_paused(run, true, by).await
    }

    /// Goes on with a run that was paused.
    pub async fn resume(&self, run: &RunId, by: &str) -> Result<(), Error> {
        self.set_paused(run, false, by).await
    }

    async fn set_paused(&self, run: &RunId, paused: bool, by: &str) -> Result<(), Error> {
        let at = self.parts.clock.now();
        let change = Change::RunPauseSet { run: run.clone(), paused, by: by.to_owned(), at };
        match self.commit_one(change).await? {
            Ok(()) => Ok(()),
            Err(Refusal::NotKnownToAll) => Err(Error::Unavailable(
                "an older server shares the store, which knows nothing of pauses; upgrade all servers"
                    .to_owned(),
            )),
            Err(_) => match self.parts.store.run(run).await? {
                None => Err(Error::NotFound(format!("run `{run}` does not exist"))),
                Some(stored) if stored.state.is_terminal() => {
                    Err(Error::Conflict(format!("run `{run}` has ended: it is {}", stored.state)))
                }
                Some(_) if paused => Err(Error::Conflict(format!("run `{run}` is paused already"))),
                Some(_) => Err(Error::Conflict(format!("run `{run}` is not paused"))),
            },
        }
    }

    /// Asks for a run's end. It is on its way when this answers; the run's state tells when it is done.
    pub async fn cancel(&self, run: &RunId, by: &str) -> Result<(), Error> {
        let change =
            Change::RunCancelRequested { run: run.clone(), by: by.to_owned(), at: self.parts.clock.now() };
        match self.commit_one(change).await? {
            Ok(()) => Ok(()),
            Err(Refusal::NotFound) => Err(Error::NotFound(format!("run `{run}` does not exist"))),
            Err(_) => {
                let stored = self.parts.store.run(run).await?;
                match stored {
                    None => Err(Error::NotFound(format!("run `{run}` does not exist"))),
                    Some(stored) if stored.state.is_terminal() => {
                        Err(Error::Conflict(format!("run `{run}` has ended: it is {}", stored.state)))
                    }
                    // Somebody asked before; it is on its way.
                    Some(_) => Ok(()),
                }
            }
        }
    }

    /// Lets a node finish what it has and take nothing new, or takes that back.
    pub async fn set_drain(&self, node: NodeId, drain: Drain, by: &str) -> Result<(), Error> {
        let draining = drain == Drain::On;
        let change = Change::NodeDrainSet { node, draining, by: by.to_owned(), at: self.parts.clock.now() };
        match self.commit_one(change).await? {
            Ok(()) => {
                self.parts.dispatcher.wake();
                Ok(())
            }
            Err(_) => Err(Error::NotFound(format!("node `{node}` does not exist"))),
        }
    }

    /// Deletes a node; see [`Force`].
    pub async fn delete_node(&self, node: NodeId, force: Force, by: &str) -> Result<Tombstone, Error> {
        patiently(nodes::delete(&self.parts, node, force, by)).await?
    }

    async fn commit_one(&self, change: Change) -> Result<Applied, Error> {
        let outcomes = patiently(self.parts.journal.commit(vec![change])).await?;
        let outcomes = outcomes.map_err(|lost| Error::Unavailable(lost.to_string()))?;
        outcomes
            .into_iter()
            .next()
            .ok_or_else(|| Error::Bug("the journal did not answer for a change".to_owned()))
    }
}

#[cfg(test)]
mod tests;
