//! Checks by the feed that a run that holds its nodes has them to itself, and that no more runs are under way than may.

use std::collections::{BTreeMap, BTreeSet};

use downbeat_core::Change;
use downbeat_core::execution::{Execution, State};
use downbeat_core::ids::{ExecutionId, NodeId, RunId};
use downbeat_core::run::RunState;
use downbeat_core::work::Parent;

use super::evidence::Evidence;
use super::{Checker, Findings};

#[derive(Default)]
struct Told {
    /// Who holds a node.
    held: BTreeMap<NodeId, RunId>,
    /// What is leased where.
    leased: BTreeMap<ExecutionId, (RunId, NodeId)>,
    under_way: BTreeSet<RunId>,
}

pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::of(Checker::Holds);
    let mut told = Told::default();
    for event in &evidence.events {
        told.take(&event.change, &mut findings);
    }
    if !told.held.is_empty() && told.under_way.is_empty() {
        findings.add(format_args!("{} nodes are held, and no run is under way", told.held.len()));
    }
    findings
}

impl Told {
    fn take(&mut self, change: &Change, findings: &mut Findings) {
        match change {
            Change::RunAdmitted { run, limit, nodes, .. } => {
                if let Some(limit) = limit
                    && self.under_way.len() >= *limit as usize
                {
                    let under_way = self.under_way.len();
                    findings.add(format_args!("{run} is let in beside {under_way} runs; {limit} may be"));
                }
                for node in nodes {
                    let holder = self.held.insert(*node, run.clone());
                    let at_work = self.leased.values().find(|(other, place)| place == node && other != run);
                    if let Some(other) = holder.as_ref().or(at_work.map(|(other, _)| other)) {
                        findings.add(format_args!("{run} takes {node}, where {other} is"));
                    }
                }
                self.under_way.insert(run.clone());
            }
            Change::RunMoved { run, path, .. } => match path.last() {
                Some(state) if state.is_terminal() => {
                    self.held.retain(|_, holder| holder != run);
                    self.under_way.remove(run);
                }
                Some(RunState::Running) => {
                    self.under_way.insert(run.clone());
                }
                Some(_) | None => {}
            },
            Change::ExecutionsAdded { run, executions, .. } => {
                for execution in executions {
                    if let Execution { state: State::Leased { lease, .. }, id, .. } = execution {
                        self.lease(run, *id, lease.node, findings);
                    }
                }
            }
            Change::ExecutionLeased { of: Parent::Run(run), execution, lease } => {
                self.lease(run, *execution, lease.node, findings);
            }
            // Whatever was there ends with the node. One that registers again under its name is free.
            Change::NodeDeleted { node, .. } => {
                self.held.remove(node);
                self.leased.retain(|_, (_, place)| place != node);
            }
            Change::ExecutionFinished { execution, .. } | Change::ExecutionLost { execution, .. } => {
                self.leased.remove(execution);
            }
            _ => {}
        }
    }

    fn lease(&mut self, run: &RunId, execution: ExecutionId, node: NodeId, findings: &mut Findings) {
        if let Some(holder) = self.held.get(&node)
            && holder != run
        {
            findings.add(format_args!("{execution} of {run} is given to {node}, which {holder} holds"));
        }
        self.leased.insert(execution, (run.clone(), node));
    }
}
