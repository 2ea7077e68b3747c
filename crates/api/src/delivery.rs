//! Owns how deliveries of messages are shown.

use downbeat_core::Span;
use downbeat_core::delivery::{Delivery as Record, DeliveryStatus, Message};
use downbeat_core::ids::{ClusterId, DeliveryId, RunId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A message about a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Delivery {
    #[schema(value_type = Uuid)]
    pub id: DeliveryId,
    #[schema(value_type = Uuid)]
    pub cluster: ClusterId,
    #[schema(value_type = String)]
    pub run: RunId,
    pub job: Option<String>,
    /// What happened, such as `failed`.
    pub event: String,
    /// `webhook`, `slack` or `email`.
    pub action: String,
    /// The host, without the rest of the URL, which may be secret; or the addresses.
    pub destination: String,
    /// `pending`, `delivered` or `failed`.
    #[schema(value_type = String)]
    pub status: DeliveryStatus,
    /// How often it was tried since it was queued or sent again.
    pub tries: u32,
    pub created_at: Timestamp,
    /// When it is sent, if it is pending.
    pub due_at: Option<Timestamp>,
    /// When the last try ended.
    pub tried_at: Option<Timestamp>,
    /// When it was delivered or given up.
    pub ended_at: Option<Timestamp>,
    /// The HTTP status of the last answer.
    pub code: Option<u16>,
    /// Why the last try failed.
    pub error: Option<String>,
    /// How long one try may take.
    #[schema(value_type = String, example = "10s")]
    pub timeout: Span,
    /// The message is signed.
    pub signed: bool,
    /// What is sent. Only for a single delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

impl Delivery {
    /// Returns a row of a list.
    pub fn of(delivery: &Record) -> Self {
        let last = delivery.last.as_ref();
        Self {
            id: delivery.id,
            cluster: delivery.cluster,
            run: delivery.run.clone(),
            job: delivery.job.as_deref().map(str::to_owned),
            event: delivery.event.clone(),
            action: delivery.message.action().to_owned(),
            destination: delivery.message.destination(),
            status: delivery.state.status(),
            tries: delivery.tries,
            created_at: delivery.created_at,
            due_at: delivery.state.due_at(),
            tried_at: last.map(|last| last.at),
            ended_at: delivery.state.ended_at(),
            code: last.and_then(|last| last.code),
            error: last.and_then(|last| last.error.clone()),
            timeout: delivery.message.timeout(),
            signed: matches!(&*delivery.message, Message::Webhook { secret: Some(_), .. }),
            body: None,
        }
    }

    /// Returns a delivery with what is sent.
    pub fn whole(delivery: &Record) -> Self {
        let body = match &*delivery.message {
            Message::Webhook { body, .. } | Message::Slack { body, .. } => body.clone(),
            Message::Email { subject, text, .. } => format!("{subject}\n\n{text}"),
        };
        Self { body: Some(body), ..Self::of(delivery) }
    }
}
