//! A machine that registers under another one's name: a clone, or an attacker. It registers once and never sends
//! anything again.

use std::collections::BTreeMap;
use std::sync::Arc;

use downbeat_agent::Connector as _;
use downbeat_core::backend::Catalogue;
use downbeat_core::ids::{ClusterId, NodeId, SessionId};
use downbeat_core::node::Description;
use downbeat_proto::message::{Fault, InstanceId, Register};

use crate::cluster::Cluster;
use crate::gate::Gate;
use crate::network::{Dial, address};
use crate::world::HostId;

pub(crate) async fn register(cluster: Arc<Cluster>, agent: usize, to: HostId) {
    let settings = cluster.agent_settings(agent);
    let test = Catalogue::builtin().backend("test").expect("the catalogue has `test`").clone();
    let description = Description {
        hostname: settings.hostname.clone(),
        groups: settings.groups,
        labels: BTreeMap::new(),
        capabilities: BTreeMap::new(),
        backends: vec![test.into()],
        slots: settings.slots,
        version: "stranger".to_owned(),
    };
    let (session, instance) = cluster.world.draw(|dice| (dice.uuid(), dice.uuid()));
    let register = Register {
        cluster: ClusterId::DEFAULT,
        node: NodeId::derive(ClusterId::DEFAULT, &settings.hostname),
        session: SessionId(session),
        description,
        instance: InstanceId(instance.as_bytes().to_vec()),
        undelivered: Vec::new(),
        life: u64::MAX,
    };
    let dial = Dial { network: cluster.network.clone(), from: HostId::Agent(agent), gate: Gate::default() };
    let answer = match dial.connect(&address(to)).await {
        Ok(link) => link.register(register).await,
        Err(fault) => Err(fault),
    };
    cluster.world.log(format_args!("a stranger registers as n{agent} at {to}: {answer:?}"));
    cluster.world.truth(|truth| match answer {
        Ok(_) => truth.counts.strangers_taken += 1,
        Err(Fault::Occupied(_)) => truth.counts.strangers_refused += 1,
        Err(_) => {}
    });
}
