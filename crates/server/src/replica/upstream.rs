//! Owns how a replica reaches the servers of its primary: by HTTP, or within a simulation.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use downbeat_api::request;
use downbeat_client::{self as client, Client};
use futures_util::stream::{BoxStream, StreamExt};

/// The last event that a replica has.
#[derive(Clone, Debug, Default)]
pub struct Since {
    pub seq: u64,
    /// The fingerprint of its last event, if it has that event.
    pub fingerprint: Option<String>,
}

/// Why a primary sends nothing, or nothing more.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error("{0}")]
    Refused(String),
    #[error("cannot connect: {0}")]
    Unreachable(String),
}

/// The lines of a primary's stream, in pieces of any length.
pub type Pieces = BoxStream<'static, Result<Bytes, Lost>>;

#[async_trait]
pub trait Upstream: Send + Sync + fmt::Debug + 'static {
    /// Opens the stream of one server.
    async fn open(&self, server: &str, since: Since) -> Result<Pieces, Lost>;
}

/// Reaches a primary by its REST address.
#[derive(Debug)]
pub(crate) struct Http;

#[async_trait]
impl Upstream for Http {
    async fn open(&self, server: &str, since: Since) -> Result<Pieces, Lost> {
        let client = Client::new(&[server.to_owned()], None)?;
        let mut request = request::replication();
        request.query = vec![("since", since.seq.to_string())];
        request.query.extend(since.fingerprint.map(|last| ("last", last)));
        let pieces = client.bytes(&request).await?;
        Ok(pieces.map(|piece| piece.map_err(Lost::from)).boxed())
    }
}

impl From<client::Error> for Lost {
    fn from(error: client::Error) -> Self {
        match error {
            client::Error::Problem(problem) => Lost::Refused(problem.detail),
            client::Error::Foreign { status, .. } => {
                Lost::Refused(format!("the response {status} is not from a downbeat server"))
            }
            client::Error::Unreachable { why, .. } => Lost::Unreachable(why),
            other => Lost::Unreachable(other.to_string()),
        }
    }
}
