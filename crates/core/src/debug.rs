//! Decides about debug commands: a command for one node, or for each node of a selector, outside any job. A debug
//! command is a run of one task, so that leases, output, events and take-over are those of any run. What differs is
//! decided here: which commands and nodes are valid, how long a command waits, and when it is removed. Admission,
//! exclusive runs and lists of runs ignore it: see [`RunId::is_debug`](crate::ids::RunId::is_debug).

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::backend::{Params, lacking_hint};
use crate::limits;
use crate::node::NodeRecord;
use crate::plan::{NodeIx, NodeRef, Resolved, SetIx, Unfit};
use crate::select::Selector;
use crate::span::Span;
use crate::spec::{Definition, Delivery, Entry, Strategy, Task};

/// The name of the job that the runs of debug commands have. A user's job may have it, too: only the ids of the runs
/// tell them apart. An index by job finds all debug commands.
pub const JOB: &str = "debug";

const BACKEND: &str = "exec";
const ACTION: &str = "shell";
const PARAM: &str = "command";

/// A valid command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugCommand {
    pub command: String,
    pub timeout: Span,
}

/// Why a command is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("`command` is empty; write what the shell of the node has to run")]
    Empty,
    #[error("`command` contains a NUL character, which no program accepts")]
    Nul,
    #[error("`command` has {0} bytes; at most {max} are possible", max = limits::DEBUG_COMMAND_BYTES)]
    TooLong(usize),
    #[error("`{0}` is not a valid timeout; it is from {least} to {most}", least = TIMEOUTS.0, most = TIMEOUTS.1)]
    Timeout(Span),
}

const TIMEOUTS: (Span, Span) =
    (Span::from_secs(limits::TASK_TIMEOUT_LEAST_S), Span::from_secs(limits::TASK_TIMEOUT_MOST_S));

impl DebugCommand {
    pub fn new(command: &str, timeout: Option<Span>) -> Result<Self, Invalid> {
        let timeout = timeout.unwrap_or(Span::from_secs(limits::DEBUG_TIMEOUT_DEFAULT_S));
        match command.len() {
            _ if command.trim().is_empty() => Err(Invalid::Empty),
            _ if command.contains('\0') => Err(Invalid::Nul),
            bytes if bytes > limits::DEBUG_COMMAND_BYTES => Err(Invalid::TooLong(bytes)),
            _ if timeout < TIMEOUTS.0 || timeout > TIMEOUTS.1 => Err(Invalid::Timeout(timeout)),
            _ => Ok(Self { command: command.to_owned(), timeout }),
        }
    }

    /// Returns the definition of the run. A failure on one node does not stop the others, and a lost attempt is not
    /// repeated: nobody knows what the command does.
    pub fn definition(&self, target: Selector) -> Definition {
        // A command that a shell reads is not a template: braces in it stay as they are.
        let command = Value::String(self.command.clone());
        let task = Task {
            backend: BACKEND.to_owned(),
            action: ACTION.to_owned(),
            params: Params::from_iter([(PARAM.to_owned(), command)]),
            timeout: Some(self.timeout),
            delivery: Some(Delivery::AtMostOnce),
            ..Task::default()
        };
        Definition {
            target: Some(target),
            strategy: Some(Strategy::Continue),
            tasks: vec![Entry::Leaf(task)],
            ..Definition::default()
        }
    }
}

/// Returns the command of a run that [`DebugCommand::definition`] defines.
pub fn command_of(definition: &Definition) -> String {
    let command = definition.steps().next().and_then(|task| task.params.get(PARAM));
    command.and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Returns the nodes of a run, by hostname. Drained nodes are not left out: a debug command may explain why a node was
/// drained. Refuses all nodes if one of them does not offer `exec`.
pub fn resolve(nodes: &[Arc<NodeRecord>]) -> Result<Resolved, Unfit> {
    let lacking = |node: &&Arc<NodeRecord>| node.description.action(BACKEND, ACTION).is_none();
    let mut refused: Vec<(String, String)> = nodes
        .iter()
        .filter(lacking)
        .map(|node| {
            let hint = lacking_hint(BACKEND);
            (node.description.hostname.clone(), format!("does not offer {BACKEND} {ACTION}{hint}"))
        })
        .collect();
    if !refused.is_empty() {
        refused.sort_unstable();
        let message = match &refused[..] {
            [(hostname, _)] => {
                format!("{hostname}: it runs no commands; start its agent with --allow {BACKEND}")
            }
            _ => {
                let count = refused.len();
                format!(
                    "{count} of the nodes run no commands; nothing was started; start their agents with --allow {BACKEND}"
                )
            }
        };
        return Err(Unfit { message, nodes: refused });
    }
    let mut nodes: Vec<NodeRef> = nodes
        .iter()
        .map(|node| NodeRef { id: node.id, hostname: node.description.hostname.clone() })
        .collect();
    nodes.sort_unstable_by(|a, b| (&a.hostname, a.id).cmp(&(&b.hostname, b.id)));
    let all: Vec<NodeIx> = (0..nodes.len()).map(NodeIx::new).collect();
    Ok(Resolved { nodes, sets: vec![all], entries: vec![Some(SetIx(0))], ..Resolved::default() })
}

/// Returns until when a command that was created at this time may wait for its node.
pub fn starts_before(created_at: Timestamp) -> Timestamp {
    let wait = SignedDuration::from_secs(i64::try_from(limits::DEBUG_WAIT_S).unwrap_or(i64::MAX));
    created_at.saturating_add(wait).unwrap_or(Timestamp::MAX)
}

/// Returns the error of a command that has waited too long.
pub fn not_started() -> String {
    format!("not started within {}", Span::from_secs(limits::DEBUG_WAIT_S))
}

/// Returns the time before which a command has ended that is removed now.
pub fn kept_since(now: Timestamp) -> Timestamp {
    let kept = SignedDuration::from_hours(limits::DEBUG_KEPT_HOURS);
    now.checked_sub(kept).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::backend::Catalogue;
    use crate::ids::{ClusterId, NodeId, SessionId};
    use crate::node::{Description, NodeStatus};
    use crate::plan::Plan;

    fn node(hostname: &str, backends: &[&str]) -> Arc<NodeRecord> {
        let catalogue = Catalogue::builtin();
        let backends: Vec<_> = backends.iter().map(|name| catalogue.backend(name).unwrap().clone()).collect();
        let description = json!({"hostname": hostname, "version": "1", "slots": 1, "backends": backends});
        let description: Description = serde_json::from_value(description).unwrap();
        Arc::new(NodeRecord {
            id: NodeId::derive(ClusterId::DEFAULT, hostname),
            cluster: ClusterId::DEFAULT,
            session: SessionId(Uuid::from_u128(1)),
            description,
            status: NodeStatus::Online,
            draining: hostname == "drained",
            registered_at: Timestamp::UNIX_EPOCH,
            seen_at: Timestamp::UNIX_EPOCH,
            installation: None,
            undelivered: Vec::new(),
            kept_since: None,
            displaced: None,
            problems: Vec::new(),
        })
    }

    #[test]
    fn a_command_has_text_and_a_timeout_within_its_bounds() {
        let long = "x".repeat(limits::DEBUG_COMMAND_BYTES + 1);
        let seconds = |seconds| Some(Span::from_secs(seconds));
        let millis = Some(Span::from_millis(999));
        let cases: [(&str, Option<Span>, Result<u64, &str>); 10] = [
            ("uptime", None, Ok(300)),
            ("uptime", seconds(1), Ok(1)),
            ("uptime", seconds(86_400), Ok(86_400)),
            (&long[1..], None, Ok(300)),
            (&long, None, Err("`command` has 65537 bytes; at most 65536 are possible")),
            ("", None, Err("`command` is empty; write what the shell of the node has to run")),
            (" \n\t", None, Err("`command` is empty; write what the shell of the node has to run")),
            ("a\0b", None, Err("`command` contains a NUL character, which no program accepts")),
            ("uptime", millis, Err("`999ms` is not a valid timeout; it is from 1s to 1d")),
            ("uptime", seconds(86_401), Err("`24h1s` is not a valid timeout; it is from 1s to 1d")),
        ];
        for (command, timeout, expected) in cases {
            let found = DebugCommand::new(command, timeout).map(|valid| valid.timeout.0.as_secs());
            assert_eq!(found.map_err(|invalid| invalid.to_string()), expected.map_err(str::to_owned));
        }
    }

    #[test]
    fn braces_reach_the_shell_as_they_are() {
        for command in [
            "uptime",
            "docker ps --format '{{.Names}}'",
            "{{{",
            "{{{{ x }}",
            "{{ \"{{\" }}",
            "echo }}{{",
            "{{ params.x }}",
        ] {
            let definition = DebugCommand::new(command, None).unwrap().definition(Selector::all());
            assert_eq!(command_of(&definition), command);
            let params = &definition.steps().next().unwrap().params;
            assert_eq!(params[PARAM], command);
            let template = crate::expr::Template::of(BACKEND, ACTION, params).unwrap();
            assert!(template.is_none(), "nothing is evaluated: {command}");
        }
    }

    #[test]
    fn every_node_gets_the_command_even_if_it_is_drained() {
        let resolved = resolve(&[node("web-2", &["exec"]), node("drained", &["apt", "exec"])]).unwrap();
        let hostnames: Vec<&str> = resolved.nodes.iter().map(|node| node.hostname.as_str()).collect();
        assert_eq!(hostnames, ["drained", "web-2"]);
        let definition = DebugCommand::new("uptime", None).unwrap().definition(Selector::all());
        let plan = Plan::compile(Arc::new(definition), Arc::new(resolved)).unwrap();
        assert_eq!(plan.steps.len(), 1);
    }

    #[test]
    fn nodes_without_exec_are_refused_by_name() {
        let one = resolve(&[node("web-1", &["exec"]), node("web-2", &["apt"])]).unwrap_err();
        assert_eq!(one.message, "web-2: it runs no commands; start its agent with --allow exec");
        let hostnames = |unfit: &Unfit| unfit.nodes.iter().map(|(node, _)| node.clone()).collect::<Vec<_>>();
        assert_eq!(hostnames(&one), ["web-2"]);
        let two = resolve(&[node("web-3", &[]), node("web-2", &["apt"])]).unwrap_err();
        assert_eq!(hostnames(&two), ["web-2", "web-3"]);
        assert!(two.message.contains("--allow exec"), "{}", two.message);
    }

    #[test]
    fn a_command_waits_an_hour_and_is_kept_for_a_day() {
        let at: Timestamp = "2026-01-31T03:00:00Z".parse().unwrap();
        assert_eq!(starts_before(at).to_string(), "2026-01-31T04:00:00Z");
        assert_eq!(kept_since(at).to_string(), "2026-01-30T03:00:00Z");
        assert_eq!(not_started(), "not started within 1h");
    }
}
