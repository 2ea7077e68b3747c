//! Says why an execution waits.

use downbeat_core::Timestamp;
use downbeat_core::execution::Execution;
use downbeat_core::ids::{ClusterId, RunId};
use downbeat_core::node::NodeStatus;
use downbeat_core::place::{self, Misfit};
use downbeat_core::plan::Plan;

use super::board::Board;
use super::post::Post;
use super::uses::Bound;

impl Board {
    /// Why an execution that is due has not been given out: what all nodes have to do with (named `-`), and per node.
    pub(crate) fn misfits(
        &self,
        plan: &Plan,
        run: &RunId,
        execution: &Execution,
        now: Timestamp,
    ) -> Vec<(String, String)> {
        let cluster = self.plans.get(run).map(|planned| planned.cluster);
        let full = cluster.map_or_else(Vec::new, |cluster| self.full(cluster, execution, now));
        let mut reasons = Vec::new();
        for post in self.posts.values() {
            let node = &post.record;
            if cluster.is_some_and(|cluster| cluster != node.cluster)
                || execution.pinned.is_some_and(|pinned| pinned != node.id)
            {
                continue;
            }
            let reason = match self.misfit(plan, run, execution, post) {
                Some(misfit) => misfit,
                // The limit is why, and no node can help it.
                None if !full.is_empty() => continue,
                None if execution.pinned.is_some() => {
                    "the node carries out one step at a time, and is busy".to_owned()
                }
                None if post.has_slots() => "the turn of its job has not come".to_owned(),
                None => "all slots are taken".to_owned(),
            };
            reasons.push((node.description.hostname.clone(), reason));
        }
        reasons.sort();
        full.into_iter().map(|reason| ("-".to_owned(), reason)).chain(reasons).collect()
    }

    /// The limits that have no place for it.
    fn full(&self, cluster: ClusterId, execution: &Execution, now: Timestamp) -> Vec<String> {
        let Some(limits) = &execution.limits else { return Vec::new() };
        let bounds = Bound::all(cluster, limits);
        bounds.iter().filter_map(|bound| self.uses.full(bound, now)).map(|full| full.to_string()).collect()
    }

    /// Why a node would not take it, however free it is.
    fn misfit(&self, plan: &Plan, run: &RunId, execution: &Execution, post: &Post) -> Option<String> {
        let node = &post.record;
        if self.paused.contains(run) {
            return Some("the run is paused".to_owned());
        }
        if !self.may_take(node.id, Some(run)) {
            return Some(self.why_not(node.id));
        }
        if execution.pinned.is_some() {
            return match node.status {
                _ if node.draining => Some("the node is drained".to_owned()),
                NodeStatus::Online => None,
                status => Some(format!("the node is {}", status.as_str())),
            };
        }
        let task = plan.task(execution.step);
        let placement = plan.placement(execution.step).cloned().unwrap_or_default();
        let fits = place::fits(&placement, &task.backend, &task.action, node, post.held_of(run));
        fits.err().map(|misfit| misfit.to_string())
    }

    /// The same of a run whose plan is on the board.
    pub(crate) fn fits_step(&self, run: &RunId, step: u32) -> Result<(), String> {
        let Some(planned) = self.plans.get(run) else { return Ok(()) };
        self.fits_any(&planned.plan, planned.cluster, step)
    }

    /// Whether a node of the cluster fits a placed step by what lasts; what nodes hold now does not count. If none does,
    /// why, in one line.
    pub(crate) fn fits_any(&self, plan: &Plan, cluster: ClusterId, step: u32) -> Result<(), String> {
        let task = plan.task(step);
        let placement = plan.placement(step).cloned().unwrap_or_default();
        let mut misfits: Vec<Misfit> = Vec::new();
        for node in self.nodes().filter(|node| node.cluster == cluster) {
            match place::fits(&placement, &task.backend, &task.action, node, 0) {
                Ok(()) => return Ok(()),
                Err(misfit) => misfits.push(misfit),
            }
        }
        Err(Misfit::summary(&misfits))
    }
}
