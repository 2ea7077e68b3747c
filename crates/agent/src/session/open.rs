//! Owns the opening of a session: becoming the node (`join`). Results of an earlier run are announced with it and
//! delivered later, so that a slow network does not delay the node.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use downbeat_core::limits::UNDELIVERED;
use downbeat_proto::message::{Finished, LeaseRef, Welcome};

use super::deliver::deliver;
use super::join::{JoinResult, Joined, Joining};
use crate::error::Error;
use crate::links::Links;
use crate::outbox::Outbox;
use crate::private;

/// Waits until a server has registered the node; also returns the results of an earlier run that no server has yet. Fails
/// only if its cluster does not exist, the node was deleted, or a newer session of it exists.
pub(crate) async fn open(
    links: &Links,
    outbox: &Outbox,
    mut former: Vec<Finished>,
    joining: &Joining,
    data: &Path,
) -> Result<(Joined, Vec<Finished>), Error> {
    let session = joining.session;
    let session_file = data.join("session");
    // An older server ends the leases of all results that it does not have when the node registers.
    let mut is_offered = former.is_empty();
    let joined = loop {
        let is_too_many = former.len() > UNDELIVERED;
        let deliver_first = |welcome: &Welcome, node| {
            (!is_offered && (!welcome.keeps_undelivered || is_too_many)).then_some(node)
        };
        match joining.join(links, deliver_first, |_| {}).await? {
            JoinResult::Joined(joined) => break joined,
            JoinResult::Declined(node) => {
                // The tokens belong to the earlier session, so the report is sent in its name.
                let former_session = fs::read_to_string(&session_file).ok();
                let former_session = former_session.and_then(|text| text.trim().parse().ok());
                let all: Vec<LeaseRef> = former.iter().map(|finished| finished.held).collect();
                former = deliver(links, outbox, former, node, former_session.unwrap_or(session)).await;
                let left: HashSet<LeaseRef> = former.iter().map(|finished| finished.held).collect();
                joining.delivered(&all.into_iter().filter(|held| !left.contains(held)).collect::<Vec<_>>());
                is_offered = true;
            }
        }
    };
    if let Err(error) = private::write(&session_file, &session.to_string()) {
        tracing::warn!(file = %session_file.display(), %error, "cannot write the session");
    }
    let hostname = &joining.description.hostname;
    let node = joined.node;
    tracing::info!(%node, %session, %hostname, server = %joined.welcome.server_name, "registered");
    if !former.is_empty() {
        tracing::info!(%node, results = former.len(), "delivering results of the previous session");
    }
    Ok((joined, former))
}
