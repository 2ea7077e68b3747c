//! Owns the opening of a session: hello, what a former life still has to say (`deliver`), then register.

use std::fs;
use std::path::Path;

use downbeat_core::ids::{NodeId, SessionId};
use downbeat_core::node::Description;
use downbeat_proto::message::{
    Finished, Hello, InstanceId, OLDEST_PROTOCOL, PROTOCOL, Register, Welcome, agreed_protocol,
};

use super::deliver::deliver;
use crate::error::Error;
use crate::links::Links;
use crate::outbox::Outbox;

/// What the opening established.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) node: NodeId,
    pub(crate) welcome: Welcome,
    /// Results of a former life that no server took.
    pub(crate) undelivered: Vec<Finished>,
}

/// Takes as long as it takes to reach a server; ends early only when one says that it is no use.
pub(crate) async fn open(
    links: &Links,
    outbox: &Outbox,
    former: Vec<Finished>,
    cluster: &str,
    description: &Description,
    session: SessionId,
    data: &Path,
) -> Result<Opened, Error> {
    let welcome = hello(links, cluster).await?;
    let node = NodeId::derive(welcome.cluster, &description.hostname);
    // The tokens are the former session's, so it is the one that speaks.
    let session_file = data.join("session");
    let former_session = fs::read_to_string(&session_file).ok().and_then(|text| text.trim().parse().ok());
    let undelivered = deliver(links, outbox, former, node, former_session.unwrap_or(session)).await;
    let registration = Register {
        cluster: welcome.cluster,
        node,
        session,
        description: description.clone(),
        instance: InstanceId::default(),
        undelivered: Vec::new(),
        life: 0,
    };
    register(links, registration).await?;
    if let Err(error) = fs::write(&session_file, session.to_string()) {
        tracing::warn!(file = %session_file.display(), %error, "cannot note the session");
    }
    tracing::info!(
        %node, %session, hostname = %description.hostname, server = %welcome.server_name, "registered"
    );
    Ok(Opened { node, welcome, undelivered })
}

async fn hello(links: &Links, cluster: &str) -> Result<Welcome, Error> {
    let hello = Hello {
        cluster: cluster.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL,
    };
    loop {
        let link = links.lend().await;
        let answer = link.hello(hello.clone()).await;
        links.settle(&link, &answer).await;
        match answer {
            // A server says the newest that both know. One that says something newer is not in step with anybody.
            Ok(welcome) if agreed_protocol(welcome.protocol) != Some(welcome.protocol) => {
                return Err(Error::Refused(format!(
                    "it speaks protocol {}, this agent {OLDEST_PROTOCOL} to {PROTOCOL}: upgrade the older of the two",
                    welcome.protocol
                )));
            }
            Ok(welcome) => return Ok(welcome),
            Err(fault) => {
                if let Some(error) = Error::from_opening(&fault) {
                    return Err(error);
                }
            }
        }
    }
}

async fn register(links: &Links, register: Register) -> Result<(), Error> {
    loop {
        let link = links.lend().await;
        let answer = link.register(register.clone()).await;
        links.settle(&link, &answer).await;
        match answer {
            Ok(()) => return Ok(()),
            Err(fault) => {
                if let Some(error) = Error::from_opening(&fault) {
                    return Err(error);
                }
            }
        }
    }
}
