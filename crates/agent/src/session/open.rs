//! Owns the opening of a session: what a former life still has to say (`deliver`), and becoming the node (`join`).

use std::fs;
use std::path::Path;

use downbeat_core::ids::NodeId;
use downbeat_proto::message::{Finished, Welcome};

use super::deliver::deliver;
use super::join::{Joined, Joining};
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

/// Takes as long as it takes to be taken by a server; ends early only when one says that the node was deleted, or that a
/// newer session of it exists.
pub(crate) async fn open(
    links: &Links,
    outbox: &Outbox,
    former: Vec<Finished>,
    joining: &Joining,
    data: &Path,
) -> Result<Opened, Error> {
    let Joined { node, welcome } = joining.join(links).await?;
    let session = joining.session;
    // The tokens are the former session's, so it is the one that speaks.
    let session_file = data.join("session");
    let former_session = fs::read_to_string(&session_file).ok().and_then(|text| text.trim().parse().ok());
    let undelivered = deliver(links, outbox, former, node, former_session.unwrap_or(session)).await;
    if let Err(error) = fs::write(&session_file, session.to_string()) {
        tracing::warn!(file = %session_file.display(), %error, "cannot note the session");
    }
    let hostname = &joining.description.hostname;
    tracing::info!(%node, %session, %hostname, server = %welcome.server_name, "registered");
    Ok(Opened { node, welcome, undelivered })
}
