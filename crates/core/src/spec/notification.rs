//! Owns the notifications of a job definition: messages to services and people outside.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::limits;
use crate::span::Span;
use crate::spec::SecretSource;

/// An action that sends a message. `fields` describes each field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
pub enum Notification {
    Webhook {
        url: String,
        /// A map or list, whose texts may have expressions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        body: Option<Value>,
        #[serde(flatten)]
        secret: Option<SecretSource>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout: Option<Span>,
    },
    Slack {
        url: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout: Option<Span>,
    },
    Email {
        to: Vec<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subject: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout: Option<Span>,
    },
}

impl Notification {
    /// The values of `action` that send a message.
    pub const ACTIONS: [&str; 3] = ["webhook", "slack", "email"];

    pub fn timeout(&self) -> Span {
        let (Self::Webhook { timeout, .. } | Self::Slack { timeout, .. } | Self::Email { timeout, .. }) =
            self;
        timeout.unwrap_or(Span::from_secs(limits::MESSAGE_TIMEOUT_DEFAULT_S))
    }
}
