//! Sends messages about runs: webhooks, messages to Slack-compatible services, e-mails.
//!
//! A message is sent at least once. Normally one server sends it: it takes the delivery by a commit first. A server that dies
//! while it sends leaves the delivery due again at a later time. Nothing of it delays a run.

mod email;
mod send;
#[cfg(test)]
mod tests;
mod worker;

pub(crate) use email::Mailer;
pub(crate) use worker::{Deliveries, deliver};
