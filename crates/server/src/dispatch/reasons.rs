//! Explains why an execution is pending.

use std::time::Duration;

use downbeat_api::Waiting;
use downbeat_core::Timestamp;
use downbeat_core::execution::{Execution, State};
use downbeat_core::ids::ClusterId;
use downbeat_core::node::WaitFacts;
use downbeat_core::place::{self, Misfit};
use downbeat_core::work::{Origin, Parent, Work};
use downbeat_proto::message::WorkKind;

use super::board::Board;
use super::post::{Holding, Post};
use super::uses::Bound;

/// Returns what has the slot that pinned work waits for.
fn busy_with<'a>(post: &'a Post, execution: &Execution) -> Option<&'a Holding> {
    let kind = if execution.run().is_debug() { WorkKind::Debug } else { WorkKind::Fleet };
    post.held.values().find(|held| held.kind == kind)
}

impl Board {
    /// Returns why a due placed execution is not leased: reasons that apply to all nodes, then reasons per
    /// node. Only reasons that are normal under load have a cause.
    pub(crate) fn obstacles(&self, work: &Work, execution: &Execution, now: Timestamp) -> Vec<Waiting> {
        let full = self.full(work.cluster, execution, now);
        let mut reasons = Vec::new();
        for post in self.posts.values() {
            let node = &post.record;
            if work.cluster != node.cluster {
                continue;
            }
            let (reason, cause) = match self.misfit(work, &execution.of, post) {
                Some(misfit) => (misfit, None),
                // A full limit is the reason, on every node.
                None if !full.is_empty() => continue,
                None if post.has_slots() => ("other jobs come first".to_owned(), Some("busy".to_owned())),
                None => ("all slots are in use".to_owned(), Some("busy".to_owned())),
            };
            reasons.push(Waiting { node: node.description.hostname.clone(), reason, cause, others: 0 });
        }
        reasons.sort_by(|a, b| a.node.cmp(&b.node));
        let of_all = |reason| Waiting { node: "-".to_owned(), reason, cause: None, others: 0 };
        full.into_iter().map(of_all).chain(reasons).collect()
    }

    /// Returns the facts that explain why a pinned execution waits, with the node's hostname. The caller
    /// adds how long the node has been silent.
    pub(crate) fn wait_facts(&self, execution: &Execution, now: Timestamp) -> Option<(String, WaitFacts)> {
        let (of, node) = (&execution.of, execution.pinned?);
        let (post, Origin::Step { run, .. }) = (self.posts.get(&node)?, of);
        let retry_in = match execution.state {
            State::Pending { not_before: Some(at) } if at > now => {
                Some(Duration::try_from(at.duration_since(now)).unwrap_or_default())
            }
            _ => None,
        };
        let work = self.work(execution.id);
        let facts = WaitFacts {
            run: run.clone(),
            retry_in,
            run_is_paused: self.is_paused(of),
            kept: (!self.may_take(node, Some(&of.parent()))).then(|| self.why_not(node)),
            status: post.record.status,
            is_draining: post.record.draining,
            silent_for: None,
            full: work.and_then(|work| self.full(work.cluster, execution, now).into_iter().next()),
            busy_with: busy_with(post, execution).map(|held| {
                let Parent::Run(run) = &held.of;
                run.clone()
            }),
        };
        Some((post.record.description.hostname.clone(), facts))
    }

    /// Describes the limits that are full for this execution.
    fn full(&self, cluster: ClusterId, execution: &Execution, now: Timestamp) -> Vec<String> {
        let Some(limits) = &execution.limits else { return Vec::new() };
        let bounds = Bound::all(cluster, limits);
        bounds.iter().filter_map(|bound| self.uses.full(bound, now)).map(|full| full.to_string()).collect()
    }

    /// Returns why a node cannot run it, even with free slots.
    fn misfit(&self, work: &Work, of: &Origin, post: &Post) -> Option<String> {
        let (node, parent) = (&post.record, of.parent());
        if self.is_paused(of) {
            return Some("the run is paused".to_owned());
        }
        if !self.may_take(node.id, Some(&parent)) {
            return Some(self.why_not(node.id));
        }
        let held = post.held_of(&parent);
        let fits = place::fits(&work.placement, &work.backend, &work.action, node, held);
        fits.err().map(|misfit| misfit.to_string())
    }

    /// Checks that some node of the cluster fits placed work, apart from what the nodes hold now. The error
    /// says in one line why none fits.
    pub(crate) fn fits_any(&self, work: &Work) -> Result<(), String> {
        let mut misfits: Vec<Misfit> = Vec::new();
        for node in self.nodes().filter(|node| node.cluster == work.cluster) {
            match place::fits(&work.placement, &work.backend, &work.action, node, 0) {
                Ok(()) => return Ok(()),
                Err(misfit) => misfits.push(misfit),
            }
        }
        Err(Misfit::summary(&misfits))
    }
}
