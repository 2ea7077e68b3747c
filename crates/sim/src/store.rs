//! Owns a server's connection to the store: slow, failing, or failing after the effect, and dead once the server has
//! crashed. The store itself is the real memory store, shared by all servers.
//!
//! Reads see everything that was committed before them: the store's guarantees hold, unless a test breaks them on
//! purpose (`Broken`) to prove that the checkers notice.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::Portion;
use downbeat_core::change::{About, Change, Event, Subject};
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::execution::{Execution, State, Status};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId, SessionId};
use downbeat_core::run::{Found, RunMade};
use downbeat_core::standing::StandingTask;
use downbeat_core::work::{Origin, Parent};
use downbeat_store::{
    Committed, DirectWrites, Error, EventFilter, Events, Executions, Hint, MemoryStore, Nodes, Runs,
    StandingKey, StandingResult, Store, Wrapper,
};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::broadcast;

use crate::clock::HostClock;
use crate::gate::Gate;
use crate::seed::Broken;
use crate::truth::{Commit, Renewal};
use crate::world::{HostId, World};

/// How far in the future the heartbeats of [`Broken::LastingHeartbeats`] are.
const LASTING: SignedDuration = SignedDuration::from_hours(1);
/// How long the commits without a guard of standing tasks take at most.
const SLOW: Duration = Duration::from_secs(2);
/// How far in the past the heartbeats of [`Broken::OldHeartbeats`] are.
const OLD: SignedDuration = SignedDuration::from_secs(2);

/// The store's current faults, for all servers.
#[derive(Debug, Default)]
pub(crate) struct Health {
    state: Mutex<StoreFaults>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct StoreFaults {
    /// The longest usual delay of one direction.
    pub(crate) delay: Duration,
    /// The share of slow calls, in a thousand.
    pub(crate) slow_permille: u64,
    /// The shares of writes that fail without an effect, and after it.
    pub(crate) fail_before_permille: u64,
    pub(crate) fail_after_permille: u64,
    /// The store never accepts work that some of the runs add, as if it were too large.
    pub(crate) rejects: bool,
    /// Servers that cannot reach the store.
    pub(crate) away_from: Vec<HostId>,
}

impl Health {
    pub(crate) fn set(&self, change: impl FnOnce(&mut StoreFaults)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn get(&self) -> StoreFaults {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Notifies servers about changes of others. A notification is a hint: it may arrive late or never.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    listening: Mutex<Vec<(HostId, Gate, broadcast::Sender<Hint>)>>,
}

impl Notifier {
    /// Registers one session of a server.
    pub(crate) fn listen(&self, host: HostId, gate: &Gate) -> broadcast::Sender<Hint> {
        let sender = broadcast::channel(64).0;
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        listening.retain(|(_, gate, _)| !gate.is_closed());
        listening.push((host, gate.clone(), sender.clone()));
        sender
    }
}

/// The store as one session of a server sees it.
#[derive(Debug)]
pub(crate) struct ServerStore {
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) hints: broadcast::Sender<Hint>,
    /// The store's clock, if several servers may share it.
    pub(crate) clock: Option<HostClock>,
    pub(crate) inner: Arc<MemoryStore>,
    pub(crate) world: Arc<World>,
    pub(crate) health: Arc<Health>,
    pub(crate) host: HostId,
    pub(crate) gate: Gate,
    pub(crate) broken: Option<Broken>,
}

fn away() -> Error {
    Error::Unavailable("the connection broke".to_owned())
}

impl ServerStore {
    /// Waits for the request's delivery; the call takes effect after it.
    async fn send_request(&self) -> Result<(), Error> {
        self.gate.pass().await;
        self.travel().await
    }

    /// Waits for the delivery in one direction.
    async fn travel(&self) -> Result<(), Error> {
        let troubles = self.health.get();
        let mut delay = self.world.up_to(troubles.delay);
        if self.world.happens(troubles.slow_permille) {
            delay += self.world.up_to(Duration::from_secs(8));
        }
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.gate.pass().await;
        if self.health.get().away_from.contains(&self.host) { Err(away()) } else { Ok(()) }
    }

    async fn apply(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
        if self.health.get().rejects && changes.iter().any(is_too_large) {
            self.world.truth(|truth| {
                truth.counts.rejected += 1;
                truth.rejected.push(self.host);
            });
            self.world.log(format_args!("{}: the store rejects {} changes", self.host, changes.len()));
            return Err(Error::Corrupt("a row is too large".to_owned()));
        }
        let rewritten = match self.broken {
            Some(Broken::NoFencing) => Some(self.without_fencing(changes).await?),
            Some(Broken::NoEpochGuard) => Some(self.without_epochs(changes).await?),
            Some(Broken::NoHolds) => Some(without_holds(changes)),
            Some(Broken::NoVersionGuard) => Some(self.without_versions(changes).await?),
            Some(Broken::NoSessionGuard) => Some(self.without_sessions(changes).await),
            Some(Broken::NoAfterGuard) => Some(self.without_ends(changes).await),
            Some(Broken::OutOfOrder) => Some(self.out_of_order(changes).await?),
            Some(Broken::SecondStep) => Some(self.with_second_steps(changes).await?),
            Some(Broken::LostCommit) if self.world.happens(20) => return self.pretend(changes).await,
            Some(Broken::NoFiringGuard) => Some(self.without_firing_guards(changes).await),
            Some(Broken::SecondFiring) => Some(self.with_second_firings(changes).await?),
            Some(Broken::LostFiring) if changes.iter().any(is_firing) && self.world.happens(200) => {
                return self.pretend(changes).await;
            }
            Some(Broken::ForgedCheck) => Some(with_forged_checks(changes)),
            Some(Broken::LostEnd) if changes.iter().any(ends_a_run) => return self.pretend(changes).await,
            Some(Broken::LostResult) if changes.iter().any(is_result) && self.world.happens(200) => {
                return self.pretend(changes).await;
            }
            _ => None,
        };
        let changes = rewritten.as_deref().unwrap_or(changes);
        let committed = self.inner.commit(server, changes).await?;
        let now = self.world.now();
        for (change, outcome) in changes.iter().zip(&committed.outcomes) {
            let seq = outcome.as_ref().map(|()| "applied").unwrap_or("refused");
            self.world.log(format_args!("{} commits {} {}", self.host, shown(change), seq));
        }
        let event = |((change, seq), about): ((&Change, &Option<u64>), &About)| {
            Some(Event { seq: (*seq)?, server, about: about.clone(), change: change.clone() })
        };
        let events = changes.iter().zip(&committed.seqs).zip(&committed.abouts).filter_map(event);
        // A store may apply the changes of a batch in another order.
        let mut events: Vec<Event> = events.collect();
        events.sort_by_key(|event| event.seq);
        self.world.truth(|truth| {
            truth.counts.commits += 1;
            let number = truth.counts.commits;
            truth.commits.extend(events.into_iter().map(|event| Commit { number, event, at: now }));
        });
        self.announce(&Hint::Events);
        Ok(committed)
    }

    /// Notifies the other servers, if they can be reached.
    fn announce(&self, hint: &Hint) {
        let troubles = self.health.get();
        let listening = self.notifier.listening.lock().unwrap_or_else(PoisonError::into_inner);
        for (host, gate, sender) in listening.iter() {
            let deaf = *host == self.host || gate.is_closed() || troubles.away_from.contains(host);
            if deaf || self.world.happens(troubles.fail_after_permille) {
                continue;
            }
            let delay = self.world.up_to(troubles.delay);
            if delay.is_zero() {
                let _ = sender.send(hint.clone());
                continue;
            }
            let (sender, hint) = (sender.clone(), hint.clone());
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = sender.send(hint);
            });
        }
    }

    /// Applies a late result of a lost attempt to the attempt that follows it.
    async fn without_fencing(&self, changes: &[Change]) -> Result<Vec<Change>, Error> {
        let mut rewritten = changes.to_vec();
        for change in &mut rewritten {
            let Change::ExecutionFinished { of: Parent::Run(run), execution, token, .. } = change else {
                continue;
            };
            let all = self.inner.executions_of(run).await?;
            let Some(lost) = all.iter().find(|each| each.id == *execution) else { continue };
            if lost.state.status() != Status::Lost {
                continue;
            }
            let next = all.iter().find(|each| {
                each.step() == lost.step() && each.pinned == lost.pinned && each.state.status().is_open()
            });
            if let Some((next, lease)) = next.and_then(|next| Some((next, next.state.lease()?))) {
                (*execution, *token) = (next.id, lease.token);
            }
        }
        Ok(rewritten)
    }

    /// Lets a former owner of a run change it.
    async fn without_epochs(&self, changes: &[Change]) -> Result<Vec<Change>, Error> {
        let mut rewritten = changes.to_vec();
        for change in &mut rewritten {
            let Some(run) = change.run().cloned() else { continue };
            let Some(current) = self.inner.run(&run).await? else { continue };
            match change {
                Change::ExecutionsAdded { epoch, .. }
                | Change::ExecutionCancelRequested { epoch, .. }
                | Change::ExecutionGivenUp { epoch, .. }
                | Change::ExecutionSkipped { epoch, .. }
                | Change::InstanceFailed { epoch, .. }
                | Change::RunChecked { epoch, .. }
                | Change::RunActed { epoch, .. }
                | Change::RunWoken { epoch, .. }
                | Change::RunMoved { epoch, .. } => *epoch = current.live.epoch,
                _ => {}
            }
        }
        Ok(rewritten)
    }

    /// Lets a decision of an outdated list through.
    async fn without_versions(&self, changes: &[Change]) -> Result<Vec<Change>, Error> {
        let mut rewritten = changes.to_vec();
        for change in &mut rewritten {
            if let Change::ExecutionsAdded { run, version: Some(version), .. } = change
                && self.list_of(run).await?.is_some()
            {
                // Slow, so that somebody else changes the list meanwhile.
                tokio::time::sleep(self.world.up_to(SLOW)).await;
                let cluster = self.list_of(run).await?;
                *version = cluster.map_or(*version, |cluster| cluster.version);
            }
        }
        Ok(rewritten)
    }

    /// Lets a decision for an outdated session through. The clock of the server that decided is ahead: dispatchers leave
    /// out what was decided before the registration of its node.
    async fn without_sessions(&self, changes: &[Change]) -> Vec<Change> {
        let mut rewritten = changes.to_vec();
        for change in &mut rewritten {
            if let Change::ExecutionsAdded { executions, sessions, version: Some(_), .. } = change {
                executions.iter_mut().for_each(|execution| execution.created_at += SLOW);
                // Slow, so that the node registers meanwhile.
                tokio::time::sleep(self.world.up_to(SLOW)).await;
                sessions.clear();
            }
        }
        rewritten
    }

    /// Lets the task after an end through, however that ended.
    async fn without_ends(&self, changes: &[Change]) -> Vec<Change> {
        let mut rewritten = changes.to_vec();
        for change in &mut rewritten {
            if let Change::ExecutionsAdded { after, version: Some(_), .. } = change
                && after.take().is_some()
            {
                // Slow, so that the lease runs out meanwhile.
                tokio::time::sleep(self.world.up_to(SLOW)).await;
            }
        }
        rewritten
    }

    /// Starts the last task of a list instead of the next one.
    async fn out_of_order(&self, changes: &[Change]) -> Result<Vec<Change>, Error> {
        let mut rewritten = changes.to_vec();
        for change in &mut rewritten {
            if let Change::ExecutionsAdded { run, executions, version: Some(_), .. } = change
                && let Some(cluster) = self.list_of(run).await?
                && let Some(last) = cluster.list.tasks.last()
            {
                let of = Origin::Step { run: run.clone(), step: last.number, item: None };
                executions.iter_mut().for_each(|each| each.of = of.clone());
            }
        }
        Ok(rewritten)
    }

    /// Starts another task of the list besides the next one.
    async fn with_second_steps(&self, changes: &[Change]) -> Result<Vec<Change>, Error> {
        let mut rewritten = changes.to_vec();
        for change in &mut rewritten {
            if let Change::ExecutionsAdded { run, executions, version: Some(_), sessions, .. } = change
                && let Some(cluster) = self.list_of(run).await?
            {
                // Without them they are not checked.
                sessions.clear();
                let number = |execution: &Execution| execution.step();
                let others: Vec<Execution> = executions
                    .iter()
                    .filter_map(|each| {
                        let other = cluster.list.tasks.iter().find(|task| task.number != number(each))?;
                        let of = Origin::Step { run: run.clone(), step: other.number, item: None };
                        let id = ExecutionId(self.world.draw(downbeat_core::Dice::uuid));
                        Some(Execution { id, of, state: State::Pending { not_before: None }, ..each.clone() })
                    })
                    .collect();
                executions.extend(others);
            }
        }
        Ok(rewritten)
    }

    /// Lets an outdated decision start a run.
    async fn without_firing_guards(&self, changes: &[Change]) -> Vec<Change> {
        let mut rewritten = changes.to_vec();
        for change in &mut rewritten {
            if let Change::RunCreated { firing, .. } = change
                && firing.take().is_some()
            {
                // Slow, so that somebody changes the job meanwhile.
                tokio::time::sleep(self.world.up_to(SLOW)).await;
            }
        }
        rewritten
    }

    /// Starts another run for a time that has one.
    async fn with_second_firings(&self, changes: &[Change]) -> Result<Vec<Change>, Error> {
        let mut rewritten = changes.to_vec();
        for change in &mut rewritten {
            if let Change::RunCreated { run, firing: Some(_), .. } = change
                && self.inner.run(&run.id).await?.is_some()
            {
                let other = RunId::from(self.world.draw(downbeat_core::Dice::uuid));
                run.made = Arc::new(RunMade { id: other, idempotency_key: None, ..(*run.made).clone() });
            }
        }
        Ok(rewritten)
    }

    async fn list_of(&self, run: &RunId) -> Result<Option<ClusterRecord>, Error> {
        match run.standing_of() {
            Some(cluster) => self.inner.cluster_record(cluster).await,
            None => Ok(None),
        }
    }

    /// Reports success without committing.
    async fn pretend(&self, changes: &[Change]) -> Result<Committed, Error> {
        let last = self.inner.last_seq().await?;
        self.world.log(format_args!("{} loses a commit of {} changes", self.host, changes.len()));
        let seqs = (last + 1..).take(changes.len()).map(Some).collect();
        let abouts = vec![About::default(); changes.len()];
        Ok(Committed { outcomes: vec![Ok(()); changes.len()], seqs, abouts })
    }
}

/// Admits exclusive runs as if they were not.
fn without_holds(changes: &[Change]) -> Vec<Change> {
    let mut rewritten = changes.to_vec();
    for change in &mut rewritten {
        if let Change::RunAdmitted { nodes, .. } = change {
            nodes.clear();
        }
    }
    rewritten
}

/// Records every constraint before the plan as met.
fn with_forged_checks(changes: &[Change]) -> Vec<Change> {
    let mut rewritten = changes.to_vec();
    for change in &mut rewritten {
        if let Change::RunChecked { results, .. } = change {
            results.iter_mut().for_each(|checked| checked.found = Found::Passed);
        }
    }
    rewritten
}

/// Returns whether a change ends a run that somebody submitted. Runs of schedules would only become more and more.
fn ends_a_run(change: &Change) -> bool {
    let Change::RunMoved { run, path, .. } = change else { return false };
    run.schedule().is_none() && path.last().is_some_and(|state| state.is_terminal())
}

/// Returns true for new work of every fourth run. The end of such a run is not too large.
fn is_too_large(change: &Change) -> bool {
    let Change::ExecutionsAdded { run, executions, .. } = change else { return false };
    // Lists are bounded: there is no standing task that a store cannot hold.
    let chosen = !run.is_standing() && run.to_string().bytes().map(u32::from).sum::<u32>() % 4 == 0;
    chosen && executions.iter().any(|each| each.state.status().is_open())
}

fn is_firing(change: &Change) -> bool {
    matches!(change, Change::RunCreated { firing: Some(_), .. })
}

fn is_result(change: &Change) -> bool {
    matches!(change, Change::ExecutionFinished { .. })
}

/// Formats a change in one line, without values that never differ.
fn shown(change: &Change) -> String {
    let subject = match change.subject() {
        Subject::Cluster(cluster) => format!("cluster={cluster}"),
        Subject::Node(node) => node.to_string(),
        Subject::Job(job) => format!("job={}", job.name),
        Subject::Run(run) => format!("run={run}"),
        Subject::Execution { id, .. } => id.to_string(),
        Subject::Unknown(_) => String::new(),
    };
    let rest = match change {
        Change::ClusterChanged { cluster, edit, .. } => {
            let tasks: Vec<String> = cluster.list.tasks.iter().map(shown_task).collect();
            format!(" version={} {edit:?} [{}]", cluster.version, tasks.join(" "))
        }
        Change::ExecutionsAdded { executions, epoch, version, .. } => {
            let all: Vec<String> = executions
                .iter()
                .map(|each| format!("{}:{}.{}{}", each.id, each.step(), each.attempt, lease_of(&each.state)))
                .collect();
            let version = version.map(|version| format!(" version={version}")).unwrap_or_default();
            format!(" epoch={epoch}{version} [{}]", all.join(" "))
        }
        Change::ExecutionLeased { lease, .. } => format!(" to={}", lease.node),
        Change::ExecutionFinished { outcome, .. } => format!(" {:?}", outcome.verdict),
        Change::ExecutionLost { reason, .. }
        | Change::ExecutionSkipped { reason, .. }
        | Change::ExecutionCancelRequested { reason, .. } => {
            format!(" {reason}")
        }
        Change::ExecutionGivenUp { error, .. } => format!(" {error}"),
        Change::RunMoved { path, epoch, .. } => format!(" epoch={epoch} {path:?}"),
        Change::RunTaken { owner, epoch, .. } => format!(" by={owner} epoch={epoch}"),
        Change::NodeRegistered { registration } => {
            format!(" {} session={}", registration.description.hostname, registration.session)
        }
        Change::RunCreated { firing: Some(firing), .. } => {
            format!(" of version={} from={}", firing.version, firing.from)
        }
        Change::JobApplied { job, .. } => format!(" version={} at={}", job.version, job.at),
        Change::JobPauseSet { paused, at, .. } => format!(" {paused} at={at}"),
        Change::JobDecided { version, from, until, skipped, refused, at, .. } => {
            let refused = refused.len();
            format!(" version={version} {from}→{until} at={at} skipped={skipped:?} refused={refused}")
        }
        Change::NodeMoved { from, to, .. } => format!(" {from:?}→{to:?}"),
        Change::NodeDrainSet { draining, .. } => format!(" {draining}"),
        Change::NodeProblemsSet { problems, .. } => format!(" {problems:?}"),
        Change::NodeDeleted { session, .. } => format!(" session={session}"),
        _ => String::new(),
    };
    format!("{} {subject}{rest}", change.kind())
}

fn shown_task(task: &StandingTask) -> String {
    let blocking = if task.blocking { "!" } else { "" };
    format!("{}={}{blocking}", task.number, task.name)
}

fn lease_of(state: &State) -> String {
    state.lease().map(|lease| format!("→{}", lease.node)).unwrap_or_default()
}

#[async_trait]
impl Wrapper for ServerStore {
    fn store(&self) -> &dyn Store {
        &*self.inner
    }

    async fn read<T, R>(&self, read: R) -> Result<T, Error>
    where
        T: Send,
        R: Future<Output = Result<T, Error>> + Send,
    {
        self.send_request().await?;
        let result = read.await?;
        self.travel().await?;
        Ok(result)
    }

    /// Runs a write that may fail before or after its effect.
    async fn write<T, R>(&self, write: R) -> Result<T, Error>
    where
        T: Send,
        R: Future<Output = Result<T, Error>> + Send,
    {
        self.send_request().await?;
        if self.world.happens(self.health.get().fail_before_permille) {
            return Err(away());
        }
        let result = write.await?;
        let lost = self.world.happens(self.health.get().fail_after_permille);
        self.travel().await?;
        if lost { Err(away()) } else { Ok(result) }
    }

    fn is_shared(&self) -> bool {
        self.clock.is_some()
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn now(&self) -> Result<Option<Timestamp>, Error> {
        self.send_request().await?;
        let now = self.clock.as_ref().map(HostClock::now);
        self.travel().await?;
        Ok(now)
    }

    async fn commit(&self, server: ServerId, changes: &[Change]) -> Result<Committed, Error> {
        let result = self.write(self.apply(server, changes)).await;
        if result.is_err() {
            self.world.truth(|truth| truth.counts.commits_failed += 1);
            self.world.log(format_args!("{} cannot commit {} changes", self.host, changes.len()));
        }
        result
    }

    async fn events(&self, filter: &EventFilter, portion: Portion) -> Result<Vec<Event>, Error> {
        assert!(self.broken != Some(Broken::Panic), "this simulation is broken on purpose");
        let mut events = self.read(self.inner.events(filter, portion)).await?;
        if self.broken == Some(Broken::FeedGap) {
            events.retain(|event| event.seq % 17 != 0);
        }
        Ok(events)
    }

    async fn touch_nodes(&self, seen: &[(NodeId, SessionId)], at: Timestamp) -> Result<Vec<bool>, Error> {
        let sent = self.world.now();
        let at = match self.broken {
            Some(Broken::LastingHeartbeats) => at + LASTING,
            Some(Broken::OldHeartbeats) => at - OLD,
            _ => at,
        };
        let effect = async {
            let current = self.inner.touch_nodes(seen, at).await?;
            let now = self.world.now();
            for ((node, _), _) in seen.iter().zip(&current).filter(|(_, current)| **current) {
                self.world
                    .truth(|truth| truth.renewals.push(Renewal { node: *node, at: sent, applied: now }));
            }
            Ok(current)
        };
        self.write(effect).await
    }

    async fn executions_by_id(&self, ids: &[ExecutionId]) -> Result<Vec<Execution>, Error> {
        let mut found = self.read(self.inner.executions_by_id(ids)).await?;
        if self.broken == Some(Broken::NoFencing) {
            // Servers check before they commit: hide from them, too, that the lease is over.
            for execution in &mut found {
                if let State::Lost { lease, .. } = execution.state {
                    execution.state = State::Leased { lease, stop: false };
                }
            }
        }
        Ok(found)
    }

    async fn standing_results(
        &self,
        cluster: Option<ClusterId>,
        after: Option<&StandingKey>,
        most: u32,
    ) -> Result<Vec<StandingResult>, Error> {
        let found = self.read(self.inner.standing_results(cluster, after, most)).await?;
        Ok(if self.broken == Some(Broken::ForgottenResults) { Vec::new() } else { found })
    }

    async fn remove_cluster(&self, cluster: ClusterId, most: u32) -> Result<u64, Error> {
        if self.broken == Some(Broken::KeptRows) {
            return Ok(0);
        }
        self.write(self.inner.remove_cluster(cluster, most)).await
    }

    async fn remove_server(&self, id: ServerId) -> Result<(), Error> {
        self.write(self.inner.remove_server(id)).await?;
        self.announce(&Hint::Servers);
        Ok(())
    }
}
