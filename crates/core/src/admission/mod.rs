//! Owns whose turn it is: which of the runs that wait may enter, why the others may not, and which nodes are kept free
//! for an exclusive run that is next.
//!
//! - Runs come in the order of their priority, and among equals of their age. Those that are paused are passed over,
//!   and so are exclusive ones that want a node that is drained: they would hold the others without end.
//! - A run that is not exclusive enters when there is room.
//! - An exclusive run enters when there is room and all its nodes are free. Until then
//!   - another exclusive run behind it that has a node in common with it does not pass it;
//!   - when nothing keeps it from its nodes but steps that are under way there, it is next: nothing new of other runs
//!     is given to its nodes, and its room is kept for it. That lasts no longer than those steps.
//!   - when another run holds one of its nodes it may last, and nothing is kept free meanwhile.
//!
//! Nobody waits for ever: a run under way waits for nobody who waits, and of those that wait the first one that is not
//! paused either enters or waits for something under way to end.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::fmt;

use jiff::Timestamp;

use crate::collections::HashMap;
use crate::ids::{NodeId, RunId};
use crate::run::NodeRef;

/// An open run, as far as turns go.
#[derive(Clone, Copy, Debug)]
pub struct Applicant<'a> {
    pub id: &'a RunId,
    /// It has not been let in. Otherwise it is under way.
    pub waits: bool,
    pub paused: bool,
    pub priority: i32,
    pub created_at: Timestamp,
    /// What it wants for itself: the nodes of an exclusive run, none of any other.
    pub nodes: &'a [NodeRef],
}

/// What is known about nodes.
#[allow(missing_debug_implementations)]
pub struct Nodes<'a> {
    /// The run that holds a node.
    pub holder: &'a dyn Fn(NodeId) -> Option<RunId>,
    /// A run other than this one that is at work on a node.
    pub busy: &'a dyn Fn(NodeId, &RunId) -> Option<RunId>,
    /// A person has drained it: it takes no new work.
    pub drained: &'a dyn Fn(NodeId) -> bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Enter,
    Wait(Reason),
}

/// Why a run waits, as what follows the run's name in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A person has paused it.
    Paused,
    /// Others come first.
    Turn { running: u32, limit: u32, ahead: u32 },
    /// A node that it wants for itself takes no work.
    Drained { hostname: String },
    /// A node that it wants for itself is not free.
    Node { hostname: String, run: RunId, how: Taken },
}

/// What another run has to do with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It has it for itself.
    Held,
    /// Something of it runs there.
    Busy,
    /// It waits for it as well, and comes first.
    Promised,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Paused => f.write_str("waits: the run is paused"),
            Reason::Turn { running, limit, ahead } => {
                let place = match ahead {
                    0 => "next in line".to_owned(),
                    1 => "1 run before it".to_owned(),
                    ahead => format!("{ahead} runs before it"),
                };
                write!(f, "waits for its turn: {running} of {limit} runs under way, {place}")
            }
            Reason::Drained { hostname } => write!(f, "waits for {hostname}, drained"),
            Reason::Node { hostname, run, how } => match how {
                Taken::Held => write!(f, "waits for {hostname}, held by run {run} (exclusive)"),
                Taken::Busy => write!(f, "waits for {hostname}, busy with run {run}"),
                Taken::Promised => {
                    write!(f, "waits for {hostname}, wanted by run {run} (exclusive), which is before it")
                }
            },
        }
    }
}

/// What is decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Of every run that waits, in the order of their turns.
    pub verdicts: Vec<(RunId, Verdict)>,
    /// Nodes that get nothing new but of this run.
    pub wanted: HashMap<NodeId, RunId>,
}

/// Decides for all runs that wait. `limit`: so many may be under way.
pub fn decide(runs: &[Applicant<'_>], nodes: &Nodes<'_>, limit: Option<u32>) -> Decision {
    let mut queue: Vec<&Applicant<'_>> = runs.iter().filter(|run| run.waits).collect();
    queue.sort_unstable_by_key(|run| (Reverse(run.priority), run.created_at, run.id));
    let running = u32::try_from(runs.len() - queue.len()).unwrap_or(u32::MAX);
    let mut pass = Pass { nodes, promised: HashMap::default(), decision: Decision::default() };
    let (mut taken, mut ahead) = (running, 0);
    for run in queue {
        let room = limit.is_none_or(|limit| taken < limit);
        let verdict = match limit {
            _ if run.paused => Verdict::Wait(Reason::Paused),
            Some(limit) if !room => Verdict::Wait(Reason::Turn { running, limit, ahead }),
            _ => pass.look(run),
        };
        let keeps_room = match &verdict {
            Verdict::Enter | Verdict::Wait(Reason::Node { how: Taken::Busy, .. }) => true,
            Verdict::Wait(_) => false,
        };
        taken += u32::from(keeps_room);
        let is_passed_over = matches!(verdict, Verdict::Wait(Reason::Paused | Reason::Drained { .. }));
        if !is_passed_over {
            ahead += 1;
            // Without room nobody behind it is looked at.
            if room {
                pass.promise(run);
            }
        }
        pass.decision.verdicts.push((run.id.clone(), verdict));
    }
    pass.decision
}

/// One walk along the queue.
struct Pass<'a> {
    nodes: &'a Nodes<'a>,
    /// Nodes of exclusive runs that were met so far.
    promised: HashMap<NodeId, RunId>,
    decision: Decision,
}

impl Pass<'_> {
    /// There is room for the run: whether its nodes are free.
    fn look(&mut self, run: &Applicant<'_>) -> Verdict {
        let wait = |node: &NodeRef, other: RunId, how| {
            Verdict::Wait(Reason::Node { hostname: node.hostname.clone(), run: other, how })
        };
        for node in run.nodes {
            if (self.nodes.drained)(node.id) {
                return Verdict::Wait(Reason::Drained { hostname: node.hostname.clone() });
            }
            if let Some(holder) = (self.nodes.holder)(node.id).filter(|holder| holder != run.id) {
                return wait(node, holder, Taken::Held);
            }
            if let Some(before) = self.promised.get(&node.id) {
                return wait(node, before.clone(), Taken::Promised);
            }
        }
        let busy = |node: &NodeRef| Some(wait(node, (self.nodes.busy)(node.id, run.id)?, Taken::Busy));
        let kept_out = run.nodes.iter().find_map(busy);
        // Also when it may enter at once: until that is committed nothing shall come in between.
        self.decision.wanted.extend(run.nodes.iter().map(|node| (node.id, run.id.clone())));
        kept_out.unwrap_or(Verdict::Enter)
    }

    /// Exclusive runs behind this one do not pass it.
    fn promise(&mut self, run: &Applicant<'_>) {
        for node in run.nodes {
            self.promised.entry(node.id).or_insert_with(|| run.id.clone());
        }
    }
}
