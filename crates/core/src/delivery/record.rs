//! Owns the record of a delivery.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::{ClusterId, DeliveryId, RunId};
use crate::span::Span;
use crate::spec::SecretSource;
use crate::words::words;

/// One message about a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    pub id: DeliveryId,
    pub cluster: ClusterId,
    pub run: RunId,
    /// The name of the run's job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Arc<str>>,
    /// What happened, as in the message.
    pub event: String,
    pub message: Arc<Message>,
    pub created_at: Timestamp,
    /// How often it was tried since it was queued or requested again.
    #[serde(default)]
    pub tries: u32,
    pub state: DeliveryState,
    /// The last try that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastTry>,
}

/// What is sent and where to. Secrets are not part of it: servers read them when they send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Message {
    Webhook {
        url: String,
        /// JSON.
        body: String,
        #[serde(flatten)]
        secret: Option<SecretSource>,
        timeout: Span,
    },
    Slack {
        url: String,
        /// JSON.
        body: String,
        timeout: Span,
    },
    Email {
        to: Vec<String>,
        subject: String,
        text: String,
        timeout: Span,
    },
}

impl Message {
    /// Returns the action of the job file.
    pub fn action(&self) -> &'static str {
        match self {
            Message::Webhook { .. } => "webhook",
            Message::Slack { .. } => "slack",
            Message::Email { .. } => "email",
        }
    }

    /// Returns how long one try may take.
    pub fn timeout(&self) -> Span {
        match self {
            Message::Webhook { timeout, .. }
            | Message::Slack { timeout, .. }
            | Message::Email { timeout, .. } => *timeout,
        }
    }

    /// Returns where it is sent to, without the path of a URL, which may be secret.
    pub fn destination(&self) -> String {
        match self {
            Message::Webhook { url, .. } | Message::Slack { url, .. } => host(url).to_owned(),
            Message::Email { to, .. } => to.join(", "),
        }
    }
}

/// Returns the host and port of a URL.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum DeliveryState {
    /// A server sends it at `due_at`, or again at that time if the server that sends it now reports nothing.
    Pending {
        due_at: Timestamp,
    },
    Delivered {
        at: Timestamp,
    },
    Failed {
        at: Timestamp,
    },
}

words! {
    pub enum DeliveryStatus {
        Pending = "pending",
        Delivered = "delivered",
        Failed = "failed",
    }
}

impl DeliveryState {
    pub fn status(self) -> DeliveryStatus {
        match self {
            Self::Pending { .. } => DeliveryStatus::Pending,
            Self::Delivered { .. } => DeliveryStatus::Delivered,
            Self::Failed { .. } => DeliveryStatus::Failed,
        }
    }

    pub fn due_at(self) -> Option<Timestamp> {
        match self {
            Self::Pending { due_at } => Some(due_at),
            Self::Delivered { .. } | Self::Failed { .. } => None,
        }
    }

    pub fn ended_at(self) -> Option<Timestamp> {
        match self {
            Self::Pending { .. } => None,
            Self::Delivered { at } | Self::Failed { at } => Some(at),
        }
    }
}

/// The result of one try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastTry {
    pub at: Timestamp,
    /// The HTTP status of the answer, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// Why it was not accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::host;

    #[test]
    fn only_host_and_port_of_a_url_are_shown() {
        for (url, expected) in [
            ("https://hooks.example/services/T0/B0/secret", "hooks.example"),
            ("http://me:word@10.0.0.1:8080?x", "10.0.0.1:8080"),
            ("http://[::1]:80/a@b", "[::1]:80"),
        ] {
            assert_eq!(host(url), expected);
        }
    }
}
