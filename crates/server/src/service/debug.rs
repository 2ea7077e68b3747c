//! Starts debug commands.

use std::sync::Arc;

use downbeat_core::backend::Params;
use downbeat_core::debug::{self, DebugCommand};
use downbeat_core::ids::{ClusterId, NodeId, RunId};
use downbeat_core::node::NodeRecord;
use downbeat_core::plan::{Plan, Unfit};
use downbeat_core::run::RunRecord;
use downbeat_core::select::Selector;
use downbeat_core::{level, limits};

use super::{IdempotencyKey, Service, Submitted};
use crate::caller::Caller;
use crate::error::{Error, Noun, Result};
use crate::runs::Launch;

/// Where a debug command runs.
#[derive(Clone, Debug)]
pub enum DebugTarget {
    Node(NodeId),
    /// Each node of a cluster that the selector matches.
    Nodes(ClusterId, Selector),
}

#[derive(Clone, Debug)]
pub struct StartDebug {
    pub target: DebugTarget,
    pub command: DebugCommand,
    pub idempotency_key: Option<IdempotencyKey>,
}

impl Service {
    /// Starts a debug command. Older servers would treat it as a run of a job, so all live servers have to know it.
    pub async fn start_debug(&self, caller: &Caller, start: StartDebug) -> Result<Submitted> {
        if !self.parts.level.reaches(level::CLUSTERS) {
            return Err(Error::OlderServer("debug commands"));
        }
        self.catch_up().await?;
        let StartDebug { target, command, idempotency_key } = start;
        let (cluster, selector, nodes) = self.debug_nodes(target)?;
        let open = self.parts.admission.open_debug(cluster);
        if open >= limits::DEBUG_OPEN {
            return Err(Error::TooManyDebug { most: limits::DEBUG_OPEN, open });
        }
        let definition = Arc::new(command.definition(selector));
        let plan = Arc::new(Plan::compile(definition, Arc::new(debug::resolve(&nodes)?))?);
        let mut made = self.new_run(caller, cluster, &plan, Params::new(), idempotency_key);
        made.id = RunId::debug(self.parts.chance.dice().uuid_at(made.created_at));
        made.job = Some(debug::JOB.to_owned());
        self.create(Launch { made, plan, taken: Vec::new(), firing: None, derived: false }).await
    }

    /// Returns a debug command: no other run.
    pub async fn debug(&self, caller: &Caller, id: &RunId) -> Result<RunRecord> {
        let missing = || Noun::Debug(id.clone());
        if !id.is_debug() {
            return Err(missing().into());
        }
        match self.run(caller, id).await {
            Err(Error::NoSuch(Noun::Run(_))) => Err(missing().into()),
            found => found,
        }
    }

    fn debug_nodes(&self, target: DebugTarget) -> Result<(ClusterId, Selector, Vec<Arc<NodeRecord>>)> {
        let bug = |error| Error::Bug(format!("cannot write a selector: {error}"));
        match target {
            DebugTarget::Node(id) => {
                let node = self.parts.dispatcher.board().node(id).cloned();
                let node = node.ok_or_else(|| Noun::node(id))?;
                let selector = Selector::parse(&format!("node:{id}")).map_err(bug)?;
                Ok((node.cluster, selector, vec![node]))
            }
            DebugTarget::Nodes(cluster, selector) => {
                let all = self.known_nodes(Some(cluster));
                let nodes: Vec<_> = all.iter().filter(|node| selector.matches(node)).cloned().collect();
                if nodes.is_empty() {
                    let message = selector.why_unmatched(all.iter().map(Arc::as_ref));
                    return Err(Unfit { message, nodes: Vec::new() }.into());
                }
                Ok((cluster, selector, nodes))
            }
        }
    }
}
