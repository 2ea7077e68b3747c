//! Test values that several modules use, in addition to those of `downbeat_store::conformance::make`.

use std::sync::Arc;

use downbeat_core::backend::Catalogue;
use downbeat_core::execution::{Execution, State};
use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::{Description, Registration};
use downbeat_core::plan::resolve;
use downbeat_core::run::{RunMade, RunRecord};
use downbeat_core::{Change, Timestamp, spec};
use downbeat_proto::message::{InstanceId, Register};
use downbeat_store::conformance::make;
use serde_json::json;
use uuid::Uuid;

/// Registers the node with this number at a time.
pub(crate) fn registered(number: u32, at: Timestamp) -> Change {
    let registration = make::registration(number, make::session(number), 0);
    Change::NodeRegistered { registration: Registration { at, ..registration } }
}

/// Returns the message with which a new agent on this host registers.
pub(crate) fn register(hostname: &str) -> Register {
    Register {
        cluster: ClusterId::DEFAULT,
        node: NodeId::derive(ClusterId::DEFAULT, hostname),
        session: SessionId(Uuid::new_v4()),
        description: Description {
            hostname: hostname.to_owned(),
            groups: Vec::new(),
            labels: [].into(),
            capabilities: [].into(),
            backends: Catalogue::builtin().backends().to_vec(),
            slots: 1,
            version: "test".to_owned(),
        },
        instance: InstanceId(hostname.as_bytes().to_vec()),
        undelivered: Vec::new(),
        life: 1,
    }
}

/// Returns a run whose tasks do not depend on each other: any node may execute them, for each of these items.
pub(crate) fn placed(number: u32, tasks: u32, items: u32) -> RunRecord {
    let items: Vec<u32> = (0..items).collect();
    let task = |task: u32| json!({"name": format!("t{task}"), "backend": "test", "action": "noop", "for_each": items, "depends_on": []});
    let job = json!({"tasks": (0..tasks).map(task).collect::<Vec<_>>()}).to_string();
    let definition = spec::parse(&job, "job.json", &Catalogue::builtin()).unwrap();
    let resolved = resolve(&definition, &definition.params, &[]).unwrap();
    let (definition, resolved) = (Arc::new(definition), Arc::new(resolved));
    make::made_as(RunMade { definition, resolved, ..make::made(number) })
}

/// Returns the error of an execution that failed without having been sent.
pub(crate) fn error_of(execution: &Execution) -> Option<String> {
    match &execution.state {
        State::Failed { error, .. } => error.clone(),
        _ => None,
    }
}
