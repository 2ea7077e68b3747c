//! Checks by the feed that an exclusive run has its nodes to itself, and that `max_runs` is respected.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_core::Change;
use downbeat_core::ids::{ExecutionId, NodeId, RunId};
use downbeat_core::plan::{EntryIx, Plan};
use downbeat_core::run::RunState;

use super::attempts::granted;
use super::evidence::Evidence;
use super::{Checker, Findings};

#[derive(Default)]
struct Holders {
    /// The run that holds each node.
    held: BTreeMap<NodeId, RunId>,
    /// Leased executions, with their run and node.
    leased: BTreeMap<ExecutionId, (RunId, NodeId)>,
    active: BTreeSet<RunId>,
}

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Holds);
    let mut holders = Holders::default();
    for event in &evidence.events {
        holders.apply(evidence, &event.change, &mut findings);
    }
    if !holders.held.is_empty() && holders.active.is_empty() {
        findings.add(format!("{} nodes are held, but no run is active", holders.held.len()));
    }
    findings
}

/// Returns the nodes that a run has to itself, by its definition.
fn exclusive_nodes(plan: &Plan) -> BTreeSet<NodeId> {
    let entries = (0..).map(EntryIx).zip(&plan.entries).filter(|_| plan.definition.exclusive);
    let nodes = entries.filter_map(|(entry, _)| plan.nodes_of(entry));
    nodes.flatten().map(|node| plan.node(*node).id).collect()
}

impl Holders {
    fn apply(&mut self, evidence: &Evidence, change: &Change, findings: &mut Findings) {
        for (run, execution, lease) in granted(change) {
            self.lease(run, execution, lease.node, findings);
        }
        match change {
            Change::RunAdmitted { run, .. } => {
                // Each cluster has its own runs.
                let home = evidence.homes.of_run(run);
                let active = self.active.iter().filter(|other| evidence.homes.of_run(other) == home).count();
                if let Some(limit) = evidence.max_concurrent_runs
                    && active >= limit as usize
                {
                    findings.add(format!(
                        "{run} is admitted while {active} runs are active; the limit is {limit}"
                    ));
                }
                for node in exclusive_nodes(&evidence.plans[run]) {
                    let holder = self.held.insert(node, run.clone());
                    let busy_elsewhere = self.leased.values().find(|(other, at)| *at == node && other != run);
                    if let Some(other) = holder.as_ref().or(busy_elsewhere.map(|(other, _)| other)) {
                        findings.add(format!("{run} takes {node}, where {other} is"));
                    }
                }
                self.active.insert(run.clone());
            }
            Change::RunMoved { run, path, .. } => match path.last() {
                // A run that waits because of its constraints has to be admitted again.
                Some(state) if state.is_terminal() || *state == RunState::Pending => {
                    self.held.retain(|_, holder| holder != run);
                    self.active.remove(run);
                }
                Some(RunState::Running) => {
                    self.active.insert(run.clone());
                }
                Some(_) | None => {}
            },
            // Deleting a node ends everything on it. A node that registers again under its name is free.
            Change::NodeDeleted { node, .. } => {
                self.held.remove(node);
                self.leased.retain(|_, (_, at)| at != node);
            }
            Change::ExecutionFinished { execution, .. } | Change::ExecutionLost { execution, .. } => {
                self.leased.remove(execution);
            }
            Change::ClusterDeleted { cluster, .. } => {
                let is_left = |run: &RunId| evidence.homes.of_run(run) != Some(*cluster);
                self.active.retain(|run| is_left(run));
                self.held.retain(|_, run| is_left(run));
                self.leased.retain(|_, (run, _)| is_left(run));
            }
            _ => {}
        }
    }

    fn lease(&mut self, run: &RunId, execution: ExecutionId, node: NodeId, findings: &mut Findings) {
        if let Some(holder) = self.held.get(&node)
            && holder != run
        {
            findings.add(format!("{execution} of {run} is leased to {node}, which {holder} holds"));
        }
        self.leased.insert(execution, (run.clone(), node));
    }
}
