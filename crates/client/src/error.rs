//! Owns the errors of requests, and their texts for users.

use std::error::Error as _;

use downbeat_api::Problem;
use downbeat_api::request::HTTP_PORT;
use reqwest::{Response, Url};

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The address of a server cannot be used.
    #[error("`{server}` is not a server's URL: {why}; write http://HOST:PORT")]
    BadAddress { server: String, why: String },
    /// No server responded, or the connection broke. `why` is the error text of the system.
    #[error(
        "cannot reach {base}: {why}; {}is `downbeat server` or `downbeat dev` running? (set another address with --server or DOWNBEAT_SERVER)",
        port_hint(base)
    )]
    Unreachable { base: String, why: String },
    /// The response was not HTTP/1. A retry would fail too.
    #[error(
        "{base} does not respond with HTTP/1: is this the agents' port? The default port of REST is {HTTP_PORT}"
    )]
    OtherProtocol { base: String },
    /// The server responded with a problem.
    #[error("{}", .0.detail)]
    Problem(Box<Problem>),
    /// The response did not come from a downbeat server, but from a proxy or another program.
    #[error(
        "{base} responded {status}, but is not a downbeat server; set --server or DOWNBEAT_SERVER to the REST port of one"
    )]
    Foreign { base: String, status: reqwest::StatusCode },
    /// The response cannot be decoded.
    #[error("cannot read the response of {base}: {why}; do server and client have the same version?")]
    Unreadable { base: String, why: String },
    /// An event of a stream cannot be decoded.
    #[error("cannot read the event `{name}`: {why}")]
    UnreadableEvent { name: String, why: String },
    #[error("the server sent an event that is too large")]
    EventTooLarge,
    #[error("cannot set up the client: {0}")]
    Setup(String),
}

impl Error {
    /// Returns the HTTP status of an error response.
    pub fn status(&self) -> Option<u16> {
        match self {
            Error::Problem(problem) => Some(problem.status),
            Error::Foreign { status, .. } => Some(status.as_u16()),
            _ => None,
        }
    }

    /// Returns whether no server could handle the request: it is down, it has no store, or a proxy cannot reach it.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Error::Unreachable { .. } | Error::OtherProtocol { .. })
            || self.status().is_some_and(|status| matches!(status, 502..=504))
    }

    /// Returns whether a server may handle the same request later.
    pub(crate) fn is_temporary(&self) -> bool {
        self.is_unreachable() && !matches!(self, Error::OtherProtocol { .. })
    }

    /// Returns the error of a request without a complete response.
    pub(crate) fn no_response(base: &str, error: &reqwest::Error) -> Self {
        let base = base.to_owned();
        if is_other_protocol(error) {
            return Error::OtherProtocol { base };
        }
        let why = if error.is_timeout() { "no response in time".to_owned() } else { root_cause(error) };
        Error::Unreachable { base, why }
    }

    /// Returns the error of an error response.
    pub(crate) async fn refused(base: &str, response: Response) -> Self {
        let status = response.status();
        let text = response.text().await.unwrap_or_default();
        match serde_json::from_str::<Problem>(&text) {
            Ok(problem) => Error::Problem(Box::new(problem)),
            Err(_) => Error::Foreign { base: base.to_owned(), status },
        }
    }
}

fn port_hint(base: &str) -> String {
    let no_port = Url::parse(base).is_ok_and(|url| url.port().is_none());
    let hint = || format!("servers listen on port {HTTP_PORT}, and the URL has no port; ");
    no_port.then(hint).unwrap_or_default()
}

/// Returns whether the peer does not use HTTP/1. A gRPC server sends an HTTP/2 frame first, which arrives before the
/// request is sent, or in place of the status line.
pub(crate) fn is_other_protocol(error: &reqwest::Error) -> bool {
    const MARKERS: [&str; 3] = [
        "invalid HTTP version parsed",
        "invalid HTTP status-code parsed",
        "received unexpected message from connection",
    ];
    let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if MARKERS.iter().any(|marker| text.contains(marker)) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Returns the error text of the system, which is the last of the chain.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause = error.source();
    let mut last = error.to_string();
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::ConnectionRefused
        {
            return "connection refused".to_owned();
        }
        last = error.to_string();
        cause = error.source();
    }
    last
}
