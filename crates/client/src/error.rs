//! Owns why a request failed, and the text that a person reads then.

use std::error::Error as _;

use downbeat_api::Problem;
use downbeat_api::request::HTTP_PORT;
use reqwest::{Response, Url};

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The address of a server cannot be used.
    #[error("`{server}` is not a server's URL: {why}; write http://HOST:PORT")]
    BadAddress { server: String, why: String },
    /// No server answered, or the connection broke. `why` is the system's own word for it.
    #[error(
        "cannot reach {base}: {why}; {}is `downbeat server` or `downbeat dev` running? (--server or DOWNBEAT_SERVER names another)",
        port_hint(base)
    )]
    Unreachable { base: String, why: String },
    /// Something answered that does not speak HTTP/1. Trying again changes nothing.
    #[error(
        "{base} does not answer in HTTP/1: is this the agents' port? REST is on {HTTP_PORT} unless the server says otherwise"
    )]
    OtherProtocol { base: String },
    /// The server answered with a problem.
    #[error("{}", .0.detail)]
    Problem(Box<Problem>),
    /// Something answered that is not a downbeat server: a proxy, or another program.
    #[error(
        "{base} answered {status}, which is not an answer of a downbeat server; does --server or DOWNBEAT_SERVER name the REST port of one?"
    )]
    Foreign { base: String, status: reqwest::StatusCode },
    /// The answer cannot be read.
    #[error("{base} answered something that this downbeat cannot read: {why}; are both of one version?")]
    Unreadable { base: String, why: String },
    /// An event of a stream cannot be read.
    #[error("cannot read the event `{name}`: {why}")]
    UnreadableEvent { name: String, why: String },
    #[error("the server sent an event without end")]
    EndlessEvent,
    #[error("cannot set up the client: {0}")]
    Setup(String),
}

impl Error {
    /// Returns the status of the answer, if a server or something else answered with an error.
    pub fn status(&self) -> Option<u16> {
        match self {
            Error::Problem(problem) => Some(problem.status),
            Error::Foreign { status, .. } => Some(status.as_u16()),
            _ => None,
        }
    }

    /// Returns whether no server could be asked: it is away, cannot do its work, or a proxy cannot reach it.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Error::Unreachable { .. } | Error::OtherProtocol { .. })
            || self.status().is_some_and(|status| matches!(status, 502..=504))
    }

    /// The request was not answered, or the answer broke off.
    pub(crate) fn unanswered(base: &str, error: &reqwest::Error) -> Self {
        let base = base.to_owned();
        if is_other_protocol(error) {
            return Error::OtherProtocol { base };
        }
        let why = if error.is_timeout() { "no answer in time".to_owned() } else { root_cause(error) };
        Error::Unreachable { base, why }
    }

    /// The request was answered with an error.
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
    let hint = || format!("servers listen on port {HTTP_PORT}, and the URL names none; ");
    no_port.then(hint).unwrap_or_default()
}

/// Returns whether something answered that is not HTTP/1. A gRPC server greets with a frame of HTTP/2, which arrives before
/// the request was sent, or where the status line should be.
pub(crate) fn is_other_protocol(error: &reqwest::Error) -> bool {
    const SIGNS: [&str; 3] = [
        "invalid HTTP version parsed",
        "invalid HTTP status-code parsed",
        "received unexpected message from connection",
    ];
    let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if SIGNS.iter().any(|sign| text.contains(sign)) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Returns the system's own word for an error, which is the last in the chain.
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
