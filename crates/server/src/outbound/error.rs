//! Owns the errors of outbound calls.

use std::error::Error as StdError;
use std::io::ErrorKind;
use std::net::IpAddr;

use downbeat_core::Span;
use downbeat_core::outbound::Reserved;
use reqwest::Url;

/// Texts name the host, not the URL: paths and queries of webhooks are secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot call the URL: {0}")]
    BadUrl(String),
    #[error(
        "cannot call {host}: its address {address} is {why}; to allow it, add it to the server's setting hooks_allow"
    )]
    Refused { host: String, address: IpAddr, why: Reserved },
    #[error("cannot reach {host}: {why}")]
    Unreachable { host: String, why: String },
    #[error("{host} did not answer within {after}")]
    TimedOut { host: String, after: Span },
    #[error("{host} redirected more than {most} times")]
    Redirects { host: String, most: usize },
    #[error("{host} answered with status {status}")]
    Status { host: String, status: u16 },
}

/// An address that the resolver or the check of a URL refused.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{address} is {why}")]
pub(super) struct RefusedAddress {
    pub(super) host: String,
    pub(super) address: IpAddr,
    pub(super) why: Reserved,
}

impl From<RefusedAddress> for Error {
    fn from(RefusedAddress { host, address, why }: RefusedAddress) -> Self {
        Self::Refused { host, address, why }
    }
}

impl Error {
    /// Returns the error of a call without a complete answer.
    pub(super) fn of(url: &Url, error: &reqwest::Error, after: Span) -> Self {
        let host = host_of(url);
        let mut cause: Option<&(dyn StdError + 'static)> = error.source();
        let mut last = None;
        while let Some(error) = cause {
            if let Some(refused) = error.downcast_ref::<RefusedAddress>() {
                return refused.clone().into();
            }
            if let Some(io) = error.downcast_ref::<std::io::Error>()
                && io.kind() == ErrorKind::ConnectionRefused
            {
                return Self::Unreachable { host, why: "connection refused".to_owned() };
            }
            last = Some(error.to_string());
            cause = error.source();
        }
        if error.is_timeout() && !error.is_connect() {
            return Self::TimedOut { host, after };
        }
        let why = last.unwrap_or_else(|| "no answer".to_owned());
        Self::Unreachable { host, why }
    }
}

/// Returns host and port of a URL, for messages.
pub(super) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}
