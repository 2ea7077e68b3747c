//! Decides admission: which waiting runs of a cluster may enter, why the others may not, and which nodes are kept free
//! for an exclusive run that is next. Runs of other clusters take neither turns nor room.
//!
//! - Runs enter in the order of their priority; runs of equal priority, in the order of their age. Paused runs are passed
//!   over, and so are exclusive runs that need a drained node: they would block the others without end.
//! - A run that is not exclusive enters when there is room.
//! - An exclusive run enters when there is room and all its nodes are free. Until then
//!   - another exclusive run behind it that shares a node with it does not pass it;
//!   - when only running steps keep it from its nodes, it is next: its nodes get no new work of other runs, and its
//!     room is kept for it. That lasts no longer than those steps.
//!   - when another run holds one of its nodes, the wait may be long, so nothing is kept free.
//!
//! No run waits forever: an active run never waits for a waiting run, and the first waiting run that is not passed
//! over is either admitted or waits for an active run to end.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::fmt;

use jiff::Timestamp;

use crate::collections::HashMap;
use crate::ids::{NodeId, RunId};
use crate::plan::NodeRef;
use crate::run::{Life, RunLive};

/// An open run of the cluster, as admission sees it.
#[derive(Clone, Copy, Debug)]
pub struct Applicant<'a> {
    pub id: &'a RunId,
    pub live: &'a RunLive,
    pub priority: i32,
    pub created_at: Timestamp,
    /// The nodes of an exclusive run; empty for any other run.
    pub nodes: &'a [NodeRef],
}

/// The facts about nodes.
#[allow(missing_debug_implementations)]
pub struct Nodes<'a> {
    /// Returns the exclusive run that holds a node.
    pub holder: &'a dyn Fn(NodeId) -> Option<RunId>,
    /// Returns a run other than this one that has work running on a node.
    pub busy: &'a dyn Fn(NodeId, &RunId) -> Option<RunId>,
    /// Returns whether a person has drained a node: it takes no new work.
    pub drained: &'a dyn Fn(NodeId) -> bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunDecision {
    Enter,
    Wait(Reason),
}

/// The reason why a run waits. The text continues a sentence that begins with the run's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A person has paused the run.
    Paused,
    /// The run violates a constraint, and waits until this time or until another run of its job has ended.
    Constraints { message: String, until: Option<Timestamp> },
    /// Other runs come first.
    Turn { running: u32, limit: u32, ahead: u32 },
    /// A node of the exclusive run is drained.
    Drained { hostname: String },
    /// A node of the exclusive run is not free.
    Node { hostname: String, run: RunId, how: NodeUse },
}

/// How another run uses a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeUse {
    /// The other run holds the node exclusively.
    Held,
    /// The other run has work running on the node.
    Busy,
    /// The other run waits for the node as well, and comes first.
    Promised,
}

impl Reason {
    fn of_constraints(life: &Life) -> Self {
        let message = life.violation.as_ref().map(|violation| violation.message.clone());
        let until = life.queued.and_then(|queued| queued.until);
        Reason::Constraints { message: message.unwrap_or_default(), until }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Paused => f.write_str("waits: the run is paused"),
            Reason::Constraints { message, until: None } => write!(f, "waits: {message}"),
            Reason::Constraints { message, until: Some(until) } => {
                write!(f, "waits until {until}: {message}")
            }
            Reason::Turn { running, limit, ahead } => {
                let place = match ahead {
                    0 => "next in line".to_owned(),
                    1 => "1 run before it".to_owned(),
                    ahead => format!("{ahead} runs before it"),
                };
                write!(f, "waits for its turn: {running} of {limit} runs active, {place}")
            }
            Reason::Drained { hostname } => write!(f, "waits for {hostname}, drained"),
            Reason::Node { hostname, run, how } => match how {
                NodeUse::Held => write!(f, "waits for {hostname}, held by run {run} (exclusive)"),
                NodeUse::Busy => write!(f, "waits for {hostname}, busy with run {run}"),
                NodeUse::Promised => {
                    write!(f, "waits for {hostname}, wanted by run {run} (exclusive), which is before it")
                }
            },
        }
    }
}

/// The result of `decide`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// One decision for each waiting run, in the order of the queue.
    pub runs: Vec<(RunId, RunDecision)>,
    /// Nodes that get new work only of this run.
    pub wanted: HashMap<NodeId, RunId>,
    /// The busy node that each of these runs waits for. Until one of them is free, the end of an execution admits no run.
    pub awaited: HashMap<NodeId, RunId>,
}

/// Decides for all waiting runs of a cluster. At most `limit` of its runs may be active.
pub fn decide(runs: &[Applicant<'_>], nodes: &Nodes<'_>, limit: Option<u32>) -> Decision {
    let mut queue: Vec<&Applicant<'_>> = runs.iter().filter(|run| run.live.is_waiting()).collect();
    queue.sort_unstable_by_key(|run| (Reverse(run.priority), run.created_at, run.id));
    let running = runs.iter().filter(|run| run.live.is_active()).count();
    let running = u32::try_from(running).unwrap_or(u32::MAX);
    let mut scan = QueueScan { nodes, promised: HashMap::default(), decision: Decision::default() };
    let (mut taken, mut ahead) = (running, 0);
    for run in queue {
        let room = limit.is_none_or(|limit| taken < limit);
        let decision = match limit {
            _ if run.live.paused_at.is_some() => RunDecision::Wait(Reason::Paused),
            _ if run.live.is_queued() => RunDecision::Wait(Reason::of_constraints(&run.live.life)),
            Some(limit) if !room => RunDecision::Wait(Reason::Turn { running, limit, ahead }),
            _ => scan.check_nodes(run),
        };
        let keeps_room = match &decision {
            RunDecision::Enter | RunDecision::Wait(Reason::Node { how: NodeUse::Busy, .. }) => true,
            RunDecision::Wait(_) => false,
        };
        taken += u32::from(keeps_room);
        let is_passed_over = matches!(
            decision,
            RunDecision::Wait(Reason::Paused | Reason::Drained { .. } | Reason::Constraints { .. })
        );
        if !is_passed_over {
            ahead += 1;
            // Without room, no run behind this one is checked.
            if room {
                scan.promise(run);
            }
        }
        scan.decision.runs.push((run.id.clone(), decision));
    }
    scan.decision
}

/// One scan of the queue.
struct QueueScan<'a> {
    nodes: &'a Nodes<'a>,
    /// The nodes of the exclusive runs that were checked so far.
    promised: HashMap<NodeId, RunId>,
    decision: Decision,
}

impl<'a> QueueScan<'a> {
    /// Returns whether a run for which there is room may enter: all its nodes must be free.
    fn check_nodes(&mut self, run: &Applicant<'a>) -> RunDecision {
        let wait = |node: &NodeRef, other: RunId, how| {
            RunDecision::Wait(Reason::Node { hostname: node.hostname.clone(), run: other, how })
        };
        for node in run.nodes {
            if (self.nodes.drained)(node.id) {
                return RunDecision::Wait(Reason::Drained { hostname: node.hostname.clone() });
            }
            if let Some(holder) = (self.nodes.holder)(node.id).filter(|holder| holder != run.id) {
                return wait(node, holder, NodeUse::Held);
            }
            if let Some(before) = self.promised.get(&node.id) {
                return wait(node, before.clone(), NodeUse::Promised);
            }
        }
        let busy = |node: &'a NodeRef| Some((node, (self.nodes.busy)(node.id, run.id)?));
        let kept_out = run.nodes.iter().find_map(busy).map(|(node, other)| {
            self.decision.awaited.insert(node.id, run.id.clone());
            wait(node, other, NodeUse::Busy)
        });
        // Also if the run may enter at once: until its admission is committed, no other work may start there.
        self.decision.wanted.extend(run.nodes.iter().map(|node| (node.id, run.id.clone())));
        kept_out.unwrap_or(RunDecision::Enter)
    }

    /// Keeps exclusive runs behind this one from passing it.
    fn promise(&mut self, run: &Applicant<'_>) {
        for node in run.nodes {
            self.promised.entry(node.id).or_insert_with(|| run.id.clone());
        }
    }
}
