//! Decides whether a node fits a placed task. `rank` chooses the best of several fitting nodes.

use serde_json::Value;

use super::misfit::Misfit;
use crate::ids::NodeId;
use crate::node::{NodeRecord, NodeStatus};
use crate::spec::Placement;

/// The shortest text of an id: hexadecimal digits without hyphens.
const ID_LEAST_BYTES: usize = 32;

/// Checks whether the node may take an execution of this action now, while it holds `held_of_run` executions of the run.
/// Lasting reasons are reported before temporary ones.
pub fn fits(
    placement: &Placement,
    backend: &str,
    action: &str,
    node: &NodeRecord,
    held_of_run: u32,
) -> Result<(), Misfit> {
    suits(placement, backend, action, node)?;
    match node.status {
        NodeStatus::Online => {}
        NodeStatus::Stale => return Err(Misfit::Stale),
        NodeStatus::Offline => return Err(Misfit::Offline),
    }
    if node.draining {
        return Err(Misfit::Draining);
    }
    match placement.max_per_node {
        Some(most) if held_of_run >= most => Err(Misfit::Full { held: held_of_run, most }),
        Some(_) | None => Ok(()),
    }
}

/// Checks whether a node is suitable for an action by what it declares. The result lasts until the node registers again.
pub fn suits(placement: &Placement, backend: &str, action: &str, node: &NodeRecord) -> Result<(), Misfit> {
    if placement.forbid.iter().any(|name| is_named(node, name)) {
        return Err(Misfit::Forbidden);
    }
    if !placement.allow.is_empty() && !placement.allow.iter().any(|name| is_named(node, name)) {
        return Err(Misfit::NotAllowed);
    }
    let Some(offered) = node.description.backend(backend) else {
        return Err(Misfit::LacksBackend { backend: backend.to_owned() });
    };
    if offered.action(action).is_none() {
        return Err(Misfit::LacksAction { backend: backend.to_owned(), action: action.to_owned() });
    }
    if let Some(lacking) = placement.backends.iter().find(|name| node.description.backend(name).is_none()) {
        return Err(Misfit::LacksBackend { backend: lacking.clone() });
    }
    for label in &placement.labels {
        has_label(node, label)?;
    }
    for (capability, wanted) in &placement.requires {
        has_capability(node, capability, wanted)?;
    }
    Ok(())
}

pub(super) fn is_named(node: &NodeRecord, name: &str) -> bool {
    // A shorter name is not an id: most names are checked without parsing them.
    let is_id = || name.len() >= ID_LEAST_BYTES && name.parse::<NodeId>().is_ok_and(|id| id == node.id);
    node.description.hostname == name || is_id()
}

pub(super) fn has_label(node: &NodeRecord, label: &str) -> Result<(), Misfit> {
    let (name, wanted) = match label.split_once('=') {
        Some((name, wanted)) => (name.trim(), Some(wanted.trim())),
        None => (label, None),
    };
    match (node.description.labels.get(name), wanted) {
        (None, _) => Err(Misfit::LacksLabel { label: name.to_owned() }),
        (Some(found), Some(wanted)) if found != wanted => Err(Misfit::LabelDiffers {
            label: name.to_owned(),
            found: found.clone(),
            wanted: wanted.to_owned(),
        }),
        (Some(_), _) => Ok(()),
    }
}

pub(super) fn has_capability(node: &NodeRecord, capability: &str, wanted: &Value) -> Result<(), Misfit> {
    let Some(found) = node.description.capabilities.get(capability) else {
        return Err(Misfit::LacksCapability { capability: capability.to_owned() });
    };
    match (found.as_f64(), wanted.as_f64()) {
        (Some(has), Some(least)) if has >= least => Ok(()),
        (Some(_), Some(_)) => Err(Misfit::CapabilityTooSmall {
            capability: capability.to_owned(),
            found: found.clone(),
            wanted: wanted.clone(),
        }),
        _ if found == wanted => Ok(()),
        _ => Err(Misfit::CapabilityDiffers {
            capability: capability.to_owned(),
            found: found.clone(),
            wanted: wanted.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::backend::Catalogue;
    use crate::ids::{ClusterId, SessionId};
    use crate::node::Description;

    fn node() -> NodeRecord {
        let catalogue = Catalogue::builtin();
        NodeRecord {
            id: NodeId::derive(ClusterId::DEFAULT, "gpu-01"),
            cluster: ClusterId::DEFAULT,
            session: SessionId(Uuid::nil()),
            description: Description {
                hostname: "gpu-01".to_owned(),
                groups: vec![],
                labels: BTreeMap::from([
                    ("fast".to_owned(), String::new()),
                    ("zone".to_owned(), "eu".to_owned()),
                ]),
                capabilities: BTreeMap::from([
                    ("gpu".to_owned(), json!("amd")),
                    ("memory_gb".to_owned(), json!(4)),
                    ("cpu".to_owned(), json!(8)),
                ]),
                backends: vec![catalogue.backend("test").unwrap().clone().into()],
                slots: 1,
                version: String::new(),
            },
            status: NodeStatus::Online,
            draining: false,
            registered_at: Timestamp::UNIX_EPOCH,
            seen_at: Timestamp::UNIX_EPOCH,
            installation: None,
            undelivered: Vec::new(),
            kept_since: None,
            displaced: None,
            problems: Vec::new(),
        }
    }

    fn placement(text: Value) -> Placement {
        serde_json::from_value(text).unwrap()
    }

    fn refusal(rule: Value) -> String {
        fits(&placement(rule), "test", "noop", &node(), 2).unwrap_err().to_string()
    }

    #[test]
    fn every_refusal_has_its_reason() {
        for (rule, reason) in [
            (json!({"forbid": ["gpu-01"]}), "is forbidden by the placement"),
            (json!({"forbid": [node().id]}), "is forbidden by the placement"),
            (json!({"forbid": [node().id.0.simple().to_string()]}), "is forbidden by the placement"),
            (json!({"allow": ["gpu-02"]}), "is not in the placement's allow list"),
            (
                json!({"backends": ["test", "docker"]}),
                "lacks backend `docker` (its agent runs without --allow docker, or found no container engine)",
            ),
            (json!({"labels": ["slow"]}), "lacks label `slow`"),
            (json!({"labels": ["zone=us"]}), "label `zone` is `eu`, not `us`"),
            (json!({"requires": {"tpu": "v5"}}), "lacks capability `tpu`"),
            (json!({"requires": {"gpu": "nvidia"}}), "capability `gpu` is \"amd\", not \"nvidia\""),
            (json!({"requires": {"memory_gb": 8}}), "capability `memory_gb` is 4, less than 8"),
            (json!({"requires": {"gpu": 1}}), "capability `gpu` is \"amd\", not 1"),
            (json!({"max_per_node": 2}), "already holds 2 executions of this run (max_per_node: 2)"),
        ] {
            assert_eq!(refusal(rule.clone()), reason, "{rule}");
        }
    }

    #[test]
    fn a_node_without_the_action_is_refused() {
        let anywhere = Placement::default();
        let lacks = |backend, action| fits(&anywhere, backend, action, &node(), 0).unwrap_err().to_string();
        assert_eq!(lacks("exec", "run"), "lacks backend `exec` (its agent runs without --allow exec)");
        assert_eq!(lacks("test", "dance"), "has backend `test` without action `dance`");
    }

    #[test]
    fn only_a_node_that_takes_work_fits() {
        let anywhere = Placement::default();
        let with = |status, draining| {
            let node = NodeRecord { status, draining, ..node() };
            fits(&anywhere, "test", "noop", &node, 0).map_err(|misfit| misfit.to_string())
        };
        assert_eq!(with(NodeStatus::Online, false), Ok(()));
        assert_eq!(with(NodeStatus::Offline, false), Err("is offline".to_owned()));
        assert_eq!(
            with(NodeStatus::Stale, false),
            Err("is stale: it has sent no heartbeat for a while".to_owned())
        );
        assert_eq!(with(NodeStatus::Online, true), Err("is draining and takes no new work".to_owned()));
    }

    #[test]
    fn a_node_that_has_all_that_is_asked_fits() {
        let rule = placement(json!({
            "requires": {"gpu": "amd", "cpu": 8, "memory_gb": 3.5},
            "labels": ["fast", "zone=eu", "zone"],
            "backends": ["test"],
            "allow": ["gpu-01"],
            "forbid": ["gpu-02"],
            "max_per_node": 3,
        }));
        assert_eq!(fits(&rule, "test", "noop", &node(), 2), Ok(()));
    }
}
