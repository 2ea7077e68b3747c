//! Sends one delivery once.

use bytes::Bytes;
use downbeat_core::delivery::{Attempted, Delivery, Message, signature};
use downbeat_core::shown::shown;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use crate::outbound::{Error, Request};
use crate::parts::Parts;
use crate::secret;

const DELIVERY: HeaderName = HeaderName::from_static("x-downbeat-delivery");
const ATTEMPT: HeaderName = HeaderName::from_static("x-downbeat-attempt");
const SIGNATURE: HeaderName = HeaderName::from_static("x-downbeat-signature");
/// The part of an answer that is kept as the reason of a failure.
const REASON_BYTES: usize = 200;

/// The result of a try.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) attempted: Attempted,
    pub(super) code: Option<u16>,
    pub(super) error: Option<String>,
}

impl Sent {
    fn failed(attempted: Attempted, error: impl Into<String>) -> Self {
        Self { attempted, code: None, error: Some(error.into()) }
    }
}

pub(super) async fn send(parts: &Parts, delivery: &Delivery, attempt: u32) -> Sent {
    let (url, body, secret) = match &*delivery.message {
        Message::Webhook { url, body, secret, .. } => (url, body, secret.as_ref()),
        Message::Slack { url, body, .. } => (url, body, None),
        Message::Email { to, subject, text, timeout } => {
            return match parts.mailer.send(delivery.id, to, subject, text, *timeout).await {
                Ok(()) => Sent { attempted: Attempted::Accepted, code: None, error: None },
                Err(error) if error.is_permanent => Sent::failed(Attempted::Impossible, error.text),
                Err(error) => Sent::failed(Attempted::Unavailable, error.text),
            };
        }
    };
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ATTEMPT, HeaderValue::from(attempt));
    headers.extend(HeaderValue::from_str(&delivery.id.to_string()).ok().map(|id| (DELIVERY, id)));
    if let Some(secret) = secret {
        // Another server may have the secret.
        let secret = match secret::read(secret).await {
            Ok(secret) => secret,
            Err(error) => return Sent::failed(Attempted::Unavailable, error),
        };
        let signature = signature(&secret, parts.clock.now().as_second(), body.as_bytes());
        headers.extend(HeaderValue::from_str(&signature).ok().map(|value| (SIGNATURE, value)));
    }
    let request = Request {
        method: Method::POST,
        url: url.clone(),
        headers,
        body: Bytes::from(body.clone()),
        timeout: delivery.message.timeout(),
    };
    match parts.outbound.send(request).await {
        Ok(answer) => {
            let (code, retry_after) = (answer.status.as_u16(), answer.retry_after());
            let attempted = Attempted::Answered { code, retry_after };
            let text = String::from_utf8_lossy(&answer.body[..answer.body.len().min(REASON_BYTES)]);
            let text = shown(text.trim());
            let reason = if text.is_empty() { String::new() } else { format!(": {text}") };
            let error = answer.succeeded().err().map(|error| format!("{error}{reason}"));
            Sent { attempted, code: Some(code), error }
        }
        Err(error @ (Error::BadUrl(_) | Error::Refused { .. })) => {
            Sent::failed(Attempted::Impossible, error.to_string())
        }
        Err(error) => Sent::failed(Attempted::Unavailable, error.to_string()),
    }
}
