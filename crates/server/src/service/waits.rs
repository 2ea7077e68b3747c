//! Explains why pending runs and pending executions have not started.

use std::time::Duration;

use downbeat_api::Waiting;
use downbeat_core::collections::HashMap;
use downbeat_core::execution::{Execution, State};
use downbeat_core::ids::{ExecutionId, NodeId, RunId};
use downbeat_core::node::{NodeWait, WaitFacts};
use downbeat_core::run::{RunLive, RunRecord};
use jiff::SignedDuration;

use super::Service;
use crate::error::{Noun, Result};

/// A node counts as silent after one and a half heartbeat intervals: before that, its next heartbeat may just be due.
const MISSED: (u32, u32) = (3, 2);

/// A node, and why it has not started an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeWaits {
    pub(crate) hostname: String,
    pub(crate) wait: NodeWait,
}

impl From<NodeWaits> for Waiting {
    fn from(NodeWaits { hostname, wait }: NodeWaits) -> Self {
        Self { node: hostname, reason: wait.to_string(), cause: Some(wait.cause().to_owned()), others: 0 }
    }
}

impl Service {
    /// Returns why a run waits for admission, if it does.
    pub fn pending_reason(&self, run: &RunRecord) -> Option<String> {
        self.pending_reasons([(&run.id, &run.live)]).remove(&run.id)
    }

    /// Returns why runs wait for admission, for those that do.
    pub fn pending_reasons<'r>(
        &self,
        runs: impl IntoIterator<Item = (&'r RunId, &'r RunLive)>,
    ) -> HashMap<RunId, String> {
        let mut waiting = runs.into_iter().filter(|(_, live)| live.is_waiting()).peekable();
        if waiting.peek().is_none() {
            return HashMap::default();
        }
        self.parts.admission.reasons(waiting.map(|(id, _)| id))
    }

    /// Returns why a pending execution waits: the first nodes for each reason.
    pub(crate) async fn obstacles(&self, execution: &Execution) -> Result<Vec<Waiting>> {
        if execution.pinned.is_some() {
            return Ok(self.node_waits(&[execution]).await?.into_values().map(Waiting::from).collect());
        }
        let now = self.now();
        if let State::Pending { not_before: Some(at) } = execution.state
            && at > now
        {
            let reason = format!("an attempt failed; the next one starts at {at}");
            let cause = Some("retry".to_owned());
            return Ok(vec![Waiting { node: "-".to_owned(), reason, cause, others: 0 }]);
        }
        let works = self.parts.dispatcher.works();
        match works.find(&execution.of, self.parts.store.as_ref(), &self.parts.heavy).await? {
            Some(work) if work.is_approval() => {
                let (run, step) = (execution.run(), execution.step());
                let question = work.question.iter().map(|message| format!(": {message}"));
                let question: String = question.collect();
                let reason = format!("waits for a person: `downbeat run approve {run} {step}`{question}");
                let cause = Some("approval".to_owned());
                Ok(vec![Waiting { node: "-".to_owned(), reason, cause, others: 0 }])
            }
            Some(work) => Ok(Waiting::group(self.parts.dispatcher.board().obstacles(&work, execution, now))),
            None => Err(Noun::Run(execution.run().clone()).into()),
        }
    }

    /// Returns why pending executions have not started on the node that they are pinned to; omits those
    /// that are about to.
    pub(crate) async fn node_waits(
        &self,
        executions: &[&Execution],
    ) -> Result<HashMap<ExecutionId, NodeWaits>> {
        let now = self.now();
        let mut facts = Vec::new();
        {
            let board = self.parts.dispatcher.board();
            for execution in executions {
                if let (Some(node), Some((hostname, found))) =
                    (execution.pinned, board.wait_facts(execution, now))
                {
                    facts.push((execution.id, node, hostname, found));
                }
            }
        }
        self.fill_silence(facts.iter_mut().map(|(_, node, _, facts)| (*node, facts)).collect()).await?;
        let health = self.parts.settings.health();
        let wait = |(execution, _, hostname, facts): (ExecutionId, NodeId, String, WaitFacts)| {
            let wait = NodeWait::of(&facts, &health)?;
            Some((execution, NodeWaits { hostname, wait }))
        };
        Ok(facts.into_iter().filter_map(wait).collect())
    }

    /// Reads from the store which nodes are silent, unless every wait is already explained.
    async fn fill_silence(&self, mut facts: Vec<(NodeId, &mut WaitFacts)>) -> Result<()> {
        let health = self.parts.settings.health();
        facts.retain(|(_, facts)| match NodeWait::of(facts, &health) {
            None => true,
            Some(wait) => matches!(wait, NodeWait::Silent { .. } | NodeWait::Busy { .. }),
        });
        if facts.is_empty() {
            return Ok(());
        }
        let now = self.now();
        let (more, of) = MISSED;
        let missed = self.parts.settings.heartbeat_interval.0 * more / of;
        let missed = SignedDuration::try_from(missed).unwrap_or(SignedDuration::MAX);
        let silent: HashMap<NodeId, Duration> = self
            .parts
            .views
            .silent_nodes(now - missed)
            .await?
            .into_iter()
            .map(|(id, node)| (id, Duration::try_from(now.duration_since(node.seen_at)).unwrap_or_default()))
            .collect();
        for (node, facts) in facts {
            facts.silent_for = silent.get(&node).copied();
        }
        Ok(())
    }
}
