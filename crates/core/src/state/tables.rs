//! Owns the tables, and applies batches of changes to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::clusters::ClusterLive;
use super::jobs;
use super::limits::LimitUses;
use super::nodes::NodeLive;
use super::runs::{Elsewhere, Home};
use crate::Timestamp;
use crate::change::{About, Applied, Change, Refusal, Silence, Subject};
use crate::cluster::ClusterRecord;
use crate::delivery::{Delivery, LastTry};
use crate::execution::{Event, Execution, Status};
use crate::ids::{BackfillId, ClusterId, DeliveryId, ExecutionId, JobId, NodeId, RunId, SessionId};
use crate::job::{BackfillRecord, JobKey, JobLive};
use crate::run::{RunEvent, RunLive};
use crate::work::Parent;

/// Rows by id: all of them, or those that one batch touches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tables {
    /// Those that are not deleted.
    pub clusters: BTreeMap<ClusterId, ClusterLive>,
    pub nodes: BTreeMap<NodeId, NodeLive>,
    /// Sessions whose node was deleted while it had them.
    pub deleted: BTreeSet<(NodeId, SessionId)>,
    /// Deleted ones too.
    pub jobs: BTreeMap<JobId, JobLive>,
    /// The number of the last event that applied a job with triggers; `u64::MAX` if the current batch has applied one.
    pub triggers_applied: u64,
    pub backfills: BTreeMap<BackfillId, BackfillRecord>,
    pub runs: BTreeMap<RunId, RunLive>,
    pub homes: BTreeMap<RunId, Home>,
    /// The cluster of each node, also of a node that was deleted.
    pub node_homes: BTreeMap<NodeId, ClusterId>,
    /// The run of each idempotency key.
    pub keys: BTreeMap<(ClusterId, String), RunId>,
    pub executions: BTreeMap<ExecutionId, Execution>,
    pub deliveries: BTreeMap<DeliveryId, Delivery>,
    /// The nodes that exclusive runs hold.
    pub holds: BTreeMap<NodeId, RunId>,
    /// Counts of the runs that were not loaded, by cluster; empty if all runs are loaded.
    pub elsewhere: BTreeMap<ClusterId, Elsewhere>,
    /// How many runs of a job that were not loaded are active; empty if all runs are loaded.
    pub active_elsewhere: BTreeMap<JobKey, u32>,
    pub uses: LimitUses,
    /// The executions that the current batch has ended, until something follows them.
    pub(super) ended: BTreeMap<ExecutionId, Status>,
    /// The runs that the current batch could not create. They may exist: another server was faster with the run of a
    /// schedule, which has the same id and the same first epoch.
    pub(super) not_created: BTreeSet<RunId>,
    /// The runs that the current batch has created.
    created: BTreeSet<RunId>,
    /// The tables belong to a replica. It does not count uses: its primary counted them.
    pub(super) is_copy: bool,
}

/// The result of a batch, before its changes are numbered.
#[derive(Debug)]
pub struct Verdicts {
    /// One for each change, in the order of the batch.
    pub outcomes: Vec<Applied>,
    /// Indexes of the applied changes in the batch, in the order in which they were applied.
    pub applied: Vec<usize>,
    /// The subject of each change of the batch; empty for a refused one.
    pub abouts: Vec<About>,
    /// Uses of rates that had ended by this time are removed.
    pub uses_over: Option<Timestamp>,
}

impl Verdicts {
    /// Numbers the applied changes from `last_seq` on, in the order in which they were applied.
    pub fn seqs(&self, last_seq: u64) -> Vec<Option<u64>> {
        let mut seqs = vec![None; self.outcomes.len()];
        for (seq, &place) in (last_seq + 1..).zip(&self.applied) {
            seqs[place] = Some(seq);
        }
        seqs
    }
}

impl Tables {
    /// Returns empty tables with the cluster `default`.
    pub fn new() -> Self {
        let default = ClusterLive::of(&ClusterRecord::default_cluster());
        Self { clusters: BTreeMap::from([(ClusterId::DEFAULT, default)]), ..Self::default() }
    }

    /// Applies a batch: kinds in the order of their phase, changes of one kind as given. New executions that rely on an end
    /// follow the ends of the batch. The failure of an instance whose
    /// last attempt ended before the batch precedes the executions of the batch, which may be its consequences.
    pub fn apply_all(&mut self, changes: &[Change]) -> Verdicts {
        let mut order: Vec<usize> = (0..changes.len()).collect();
        order.sort_by_key(|&place| match &changes[place] {
            Change::InstanceFailed { execution, .. } if self.has_ended(*execution) => {
                Change::BEFORE_EXECUTIONS
            }
            Change::ExecutionsAdded { after: Some(_), .. } => Change::AFTER_ENDS,
            change => change.phase(),
        });
        let mut outcomes = vec![Ok(()); changes.len()];
        let mut abouts = vec![About::default(); changes.len()];
        order.retain(|&place| {
            let was = changes[place].execution().and_then(|id| self.executions.get(&id));
            let was = was.map(|execution| execution.state.status());
            outcomes[place] = self.apply(&changes[place]);
            if outcomes[place].is_ok() {
                abouts[place] = About { was, ..self.about(&changes[place]) };
            }
            outcomes[place].is_ok()
        });
        self.ended.clear();
        self.not_created.clear();
        self.created.clear();
        let uses_over = self.uses.latest.take();
        if let Some(at) = uses_over {
            self.uses.forget(at);
        }
        Verdicts { outcomes, applied: order, abouts, uses_over }
    }

    /// Returns the subject of a change that was applied.
    fn about(&self, change: &Change) -> About {
        let of_run = |run: &RunId| {
            let home = self.homes.get(run);
            About {
                cluster: home.map(|home| home.cluster),
                job: home.and_then(|home| home.job.clone()),
                ..About::default()
            }
        };
        match change.subject() {
            Subject::Node(node) => {
                About { cluster: self.node_homes.get(&node).copied(), node: Some(node), ..About::default() }
            }
            Subject::Cluster(cluster) => About { cluster: Some(cluster), ..About::default() },
            Subject::Job(job) => {
                About { cluster: Some(job.cluster), job: Some(Arc::clone(&job.name)), ..About::default() }
            }
            Subject::Run(run) => of_run(run),
            Subject::Execution { run, id } => {
                let execution = self.executions.get(&id);
                About {
                    node: execution.and_then(Execution::node),
                    step: execution.map(Execution::step),
                    item: execution.and_then(Execution::item),
                    attempt: execution.map(|execution| execution.attempt),
                    ..of_run(run)
                }
            }
            Subject::Unknown(_) => About::default(),
        }
    }

    /// Applies changes that another store has applied, in its order, and without the guards that mattered only there.
    /// Stops at the first change that is refused and returns its index.
    pub fn apply_in_order(&mut self, changes: &[Change]) -> Result<(), (usize, Refusal)> {
        self.is_copy = true;
        for (place, change) in changes.iter().enumerate() {
            self.apply(change).map_err(|refusal| (place, refusal))?;
        }
        Ok(())
    }

    fn apply(&mut self, change: &Change) -> Applied {
        match change {
            Change::ClusterCreated { cluster, .. } => self.create_cluster(cluster),
            Change::ClusterChanged { cluster, .. } => self.change_cluster(cluster),
            Change::ClusterDeleted { cluster, .. } => self.delete_cluster(*cluster),
            Change::NodeRegistered { registration } => self.register(registration),
            Change::NodeMoved { node, session, from, to, silent_since, at: _ } => {
                self.unheard(silent_since.map(|since| Silence { node: *node, since }))?;
                let node = self.nodes.get_mut(node).ok_or(Refusal::NotFound)?;
                if node.session != *session {
                    return Err(Refusal::StaleSession);
                }
                if node.status != *from {
                    return Err(Refusal::WrongState);
                }
                node.status = *to;
                Ok(())
            }
            Change::NodeDrainSet { node, draining, by: _, at: _ } => {
                self.nodes.get_mut(node).ok_or(Refusal::NotFound)?.draining = *draining;
                Ok(())
            }
            Change::NodeProblemsSet { node, session, problems: _, at: _ } => {
                self.has_session(*node, *session)
            }
            Change::NodeDeleted { node, session, by: _, silent_since, at: _ } => {
                self.unheard(silent_since.map(|since| Silence { node: *node, since }))?;
                self.has_session(*node, *session)?;
                self.nodes.remove(node);
                self.holds.remove(node);
                self.deleted.insert((*node, *session));
                Ok(())
            }
            Change::JobApplied { job, triggers_seen } => self.apply_job(job, *triggers_seen),
            Change::JobPauseSet { job, paused, by: _, at } => self.pause_job(job, *paused, *at),
            Change::JobDeleted { job, by: _, at } => self.delete_job(job, *at),
            Change::JobDecided { job, version, from, until, skipped, refused, at: _ } => {
                self.decide_job(job, *version, *from, *until, jobs::relied_on(skipped, refused))
            }
            Change::BackfillCreated { backfill } => self.create_backfill(backfill),
            Change::BackfillMoved { job, backfill, step, at } => {
                self.backfill_of(job, *backfill)?.step(step, *at)
            }
            Change::BackfillCancelled { job, backfill, cancel } => {
                self.backfill_of(job, *backfill)?.cancel(cancel)
            }
            Change::JobNotTriggered { job, .. } => self.live_job(job).map(|_| ()),
            Change::TriggersFollowed { .. } => Ok(()),
            Change::RunCreated { run, max_pending, max_open, firing } => {
                let may_fire = self.may_fire(run, *firing);
                let created = may_fire.and_then(|()| self.create_run(run, *max_pending, *max_open));
                let created = created.and_then(|()| self.start_backfilled(run, *firing));
                if created.is_ok() {
                    self.created.insert(run.id.clone());
                } else if !self.created.contains(&run.id) {
                    self.not_created.insert(run.id.clone());
                }
                created
            }
            Change::RunAdmitted { run, epoch, limit, nodes, at } => {
                self.admit(run, &RunEvent::Admitted { epoch: *epoch, at: *at }, *limit, nodes)
            }
            Change::RunTaken { .. }
            | Change::RunCancelRequested { .. }
            | Change::RunPauseSet { .. }
            | Change::RunChecked { .. }
            | Change::RunActed { .. }
            | Change::RunWoken { .. } => match RunEvent::of(change) {
                Some((run, event)) => self.step_run(run, &event),
                None => Ok(()),
            },
            Change::RunMoved { run, room, .. } => {
                self.has_room(run, *room)?;
                match RunEvent::of(change) {
                    Some((run, event)) => self.step_run(run, &event),
                    None => Ok(()),
                }
            }
            Change::ExecutionsAdded { run, epoch, executions, rollout, version, sessions, after, at: _ } => {
                self.has_epoch(run, *epoch)?;
                self.has_version(run, *version)?;
                self.have_sessions(executions, sessions)?;
                self.follows(run, *after)?;
                self.add_executions(run, executions)?;
                self.record_rollout(run, *rollout)
            }
            Change::ExecutionLeased { of: Parent::Run(run), execution, lease } => {
                self.is_free(lease.node, run)?;
                self.lease(run, *execution, lease)
            }
            Change::ExecutionStarted { of: Parent::Run(run), execution, token, at, received_at } => {
                let started = Event::Started { token: *token, at: *at, received_at: *received_at };
                self.step(run, *execution, &started)
            }
            Change::ExecutionFinished { of: Parent::Run(run), execution, token, outcome } => {
                self.step(run, *execution, &Event::Finished { token: *token, outcome: outcome.clone() })
            }
            Change::ExecutionLost { of: Parent::Run(run), execution, token, silence, reason, at } => {
                self.unheard(*silence)?;
                self.step(
                    run,
                    *execution,
                    &Event::LeaseEnded { token: *token, reason: reason.clone(), at: *at },
                )
            }
            Change::ApprovalDecided { run, execution, decision, at } => {
                self.step(run, *execution, &Event::Decided { decision: decision.clone(), at: *at })
            }
            Change::ExecutionCancelRequested { run, execution, epoch, reason, at } => {
                self.has_epoch(run, *epoch)?;
                self.step(run, *execution, &Event::CancelRequested { reason: reason.clone(), at: *at })
            }
            Change::ExecutionGivenUp { run, execution, epoch, error, at } => {
                self.has_epoch(run, *epoch)?;
                self.step(run, *execution, &Event::GivenUp { error: error.clone(), at: *at })
            }
            Change::ExecutionSkipped { run, execution, epoch, reason, at } => {
                self.has_epoch(run, *epoch)?;
                self.step(run, *execution, &Event::Skipped { reason: reason.clone(), at: *at })
            }
            Change::InstanceFailed { run, epoch, execution, reason, rollout, .. } => {
                self.has_epoch(run, *epoch)?;
                self.mark_failed(run, *execution, reason)?;
                self.record_rollout(run, *rollout)
            }
            Change::DeliveryQueued { delivery, epoch } => {
                self.has_epoch(&delivery.run, *epoch)?;
                self.queue_delivery(delivery)
            }
            Change::DeliveryTaken { delivery, attempt, until, at, run: _ } => {
                self.take_delivery(*delivery, *attempt, *until, *at)
            }
            Change::DeliveryTried { delivery, attempt, code, error, state, at, run: _ } => {
                let last = LastTry { at: *at, code: *code, error: error.clone() };
                self.end_try(*delivery, *attempt, *state, last)
            }
            Change::DeliveryRequested { delivery, at, by: _, run: _ } => {
                self.request_delivery(*delivery, *at)
            }
            Change::Unknown { name, .. } if self.is_copy && name == Change::REMOVED => Ok(()),
            Change::Unknown { .. } => Err(Refusal::NotKnownToAll),
        }
    }
}
