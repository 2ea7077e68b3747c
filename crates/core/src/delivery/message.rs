//! Builds a delivery from a job's notification and the facts of its run.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Delivery, DeliveryState, Message};
use crate::backend::Params;
use crate::expr::{Data, Scope, Template};
use crate::ids::{ClusterId, DeliveryId, RunId};
use crate::limits;
use crate::spec::Notification;

/// The facts of a run that a message has.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    pub cluster: ClusterId,
    pub cluster_name: &'a str,
    pub run: &'a RunId,
    pub job: Option<&'a str>,
    /// What happened: `succeeded`, `failed`, or the name of a violated constraint's list.
    pub event: &'a str,
    /// The state of the run.
    pub status: &'a str,
    pub error: Option<&'a str>,
    pub params: &'a Params,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// When this is decided.
    pub now: Timestamp,
}

/// Builds the delivery of a notification. `place` names the notification within the run, such as `on_failure/0`: the id
/// follows from both, so that a server that decides again queues nothing twice.
pub fn build(notification: &Notification, facts: &Facts<'_>, place: &str) -> Delivery {
    let id = DeliveryId::derive(facts.cluster, facts.run, place);
    Delivery {
        id,
        cluster: facts.cluster,
        run: facts.run.clone(),
        job: facts.job.map(Arc::from),
        event: facts.event.to_owned(),
        message: Arc::new(message(notification, facts, id)),
        created_at: facts.now,
        tries: 0,
        state: DeliveryState::Pending { due_at: facts.now },
        last: None,
    }
}

fn message(notification: &Notification, facts: &Facts<'_>, id: DeliveryId) -> Message {
    let timeout = notification.timeout();
    match notification {
        Notification::Webhook { url, body, secret, .. } => {
            let default = || default_body(facts, id);
            let body = match body {
                // A message without the values is better than none: the service gets the reason with the facts.
                Some(body) => rendered(body, facts).unwrap_or_else(|error| {
                    let mut body = default();
                    body["template_error"] = json!(error);
                    body
                }),
                None => default(),
            };
            let (url, body) = (url.clone(), body.to_string());
            Message::Webhook { url, body, secret: secret.clone(), timeout }
        }
        Notification::Slack { url, text, .. } => {
            let body = json!({"text": rendered_text(text.as_deref(), facts)}).to_string();
            Message::Slack { url: url.clone(), body, timeout }
        }
        Notification::Email { to, subject, text, .. } => {
            let subject = match subject {
                Some(subject) => rendered_text(Some(subject), facts),
                None => title(facts),
            };
            // A header has one line.
            let subject = subject.replace(['\r', '\n'], " ");
            let text = rendered_text(text.as_deref(), facts);
            Message::Email { to: to.clone(), subject, text, timeout }
        }
    }
}

/// Returns the body of a webhook without a template.
fn default_body(facts: &Facts<'_>, id: DeliveryId) -> Value {
    json!({
        "delivery": id.to_string(),
        "event": facts.event,
        "cluster": facts.cluster_name,
        "job": facts.job,
        "run": facts.run.as_str(),
        "status": facts.status,
        "error": facts.error,
        "created_at": facts.created_at.to_string(),
        "started_at": facts.started_at.map(|at| at.to_string()),
        "finished_at": facts.finished_at.map(|at| at.to_string()),
    })
}

/// Returns one line about the run.
fn title(facts: &Facts<'_>) -> String {
    format!("{}: {}", facts.job.unwrap_or("run"), facts.event)
}

fn default_text(facts: &Facts<'_>) -> String {
    let mut text = format!("{} (run {}, {})", title(facts), facts.run, facts.status);
    if let Some(error) = facts.error {
        text.push_str(": ");
        text.push_str(error);
    }
    text
}

fn rendered_text(template: Option<&str>, facts: &Facts<'_>) -> String {
    let Some(template) = template else { return default_text(facts) };
    match rendered(&json!(template), facts) {
        Ok(Value::String(text)) => text,
        Ok(other) => other.to_string(),
        Err(error) => format!("{} [{error}]", default_text(facts)),
    }
}

/// Renders the expressions of a value.
fn rendered(template: &Value, facts: &Facts<'_>) -> Result<Value, String> {
    const NAME: &str = "body";
    let params = Params::from([(NAME.to_owned(), template.clone())]);
    let rendered = match Template::of("", "", &params).map_err(|problem| problem.message)? {
        None => return Ok(template.clone()),
        Some(template) => template.render(&scope(facts)).map_err(|problem| problem.message)?,
    };
    let value = rendered.into_iter().next().map_or(Value::Null, |(_, value)| value);
    let bytes = value.to_string().len();
    if bytes > limits::MESSAGE_BODY_BYTES {
        return Err(format!("the body has {bytes} bytes; at most {} are sent", limits::MESSAGE_BODY_BYTES));
    }
    Ok(value)
}

/// Returns the names that templates may use. A fact that does not exist is an empty text.
fn scope(facts: &Facts<'_>) -> Scope {
    let time = |at: Option<Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
    let run = json!({"id": facts.run.as_str(), "job": facts.job.unwrap_or_default()});
    let event = json!({
        "name": facts.event,
        "status": facts.status,
        "error": facts.error.unwrap_or_default(),
        "cluster": facts.cluster_name,
        "created_at": facts.created_at.to_string(),
        "started_at": time(facts.started_at),
        "finished_at": time(facts.finished_at),
    });
    Scope {
        run: Data::from(&run),
        params: Data::from(facts.params),
        node: None,
        steps: BTreeMap::new(),
        item: None,
        event: Some(Data::from(&event)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::Span;

    fn facts<'a>(run: &'a RunId, params: &'a Params) -> Facts<'a> {
        let at = |second| Timestamp::from_second(second).unwrap();
        Facts {
            cluster: ClusterId::DEFAULT,
            cluster_name: "default",
            run,
            job: Some("backup"),
            event: "failed",
            status: "failed",
            error: Some("disk \"full\""),
            params,
            created_at: at(10),
            started_at: Some(at(20)),
            finished_at: None,
            now: at(30),
        }
    }

    fn message_of(notification: &Notification) -> Message {
        let params = Params::from([("zone".to_owned(), json!("eu"))]);
        let run = RunId::from("run-1");
        Arc::unwrap_or_clone(build(notification, &facts(&run, &params), "on_failure/0").message)
    }

    fn webhook(body: Option<Value>) -> Notification {
        let (url, timeout) = ("https://hooks.example/x".to_owned(), Some(Span::from_secs(3)));
        Notification::Webhook { url, body, secret: None, timeout }
    }

    fn body_of(notification: &Notification) -> Value {
        let (Message::Webhook { body, .. } | Message::Slack { body, .. }) = message_of(notification) else {
            panic!("not HTTP")
        };
        serde_json::from_str(&body).unwrap()
    }

    #[test]
    fn the_default_body_has_the_facts_of_the_run() {
        let mut body = body_of(&webhook(None));
        assert!(body["delivery"].as_str().is_some_and(|id| id.len() == 36));
        body["delivery"] = json!("id");
        let expected = json!({
            "delivery": "id", "event": "failed", "cluster": "default", "job": "backup", "run": "run-1",
            "status": "failed", "error": "disk \"full\"", "created_at": "1970-01-01T00:00:10Z",
            "started_at": "1970-01-01T00:00:20Z", "finished_at": null,
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn the_expressions_of_a_body_are_rendered_into_valid_json() {
        let body = json!({"text": "{{ run.job }} in {{ params.zone }}: {{ event.error }}", "n": [1, "{{ event.status }}"]});
        let expected = json!({"text": "backup in eu: disk \"full\"", "n": [1, "failed"]});
        assert_eq!(body_of(&webhook(Some(body))), expected);
    }

    #[test]
    fn a_body_that_cannot_be_rendered_is_the_default_with_the_reason() {
        let body = body_of(&webhook(Some(json!({"x": "{{ params.missing }}"}))));
        assert_eq!(body["job"], "backup");
        assert!(
            body["template_error"].as_str().is_some_and(|error| error.contains("params.missing")),
            "{body}"
        );
    }

    #[test]
    fn slack_and_email_have_a_text_of_their_own() {
        let url = "https://hooks.example/x".to_owned();
        let slack = |text: Option<&str>| Notification::Slack {
            url: url.clone(),
            text: text.map(str::to_owned),
            timeout: None,
        };
        assert_eq!(
            body_of(&slack(None)),
            json!({"text": "backup: failed (run run-1, failed): disk \"full\""})
        );
        assert_eq!(body_of(&slack(Some("{{ run.job }}!"))), json!({"text": "backup!"}));
        let to = vec!["ops@example.org".to_owned()];
        let email = Notification::Email { to: to.clone(), subject: None, text: None, timeout: None };
        let Message::Email { to: sent_to, subject, text, .. } = message_of(&email) else {
            panic!("no e-mail")
        };
        assert_eq!((sent_to, subject.as_str()), (to, "backup: failed"));
        assert!(text.contains("run-1"));
    }

    #[test]
    fn the_id_follows_from_the_run_and_the_place() {
        let (params, run) = (Params::new(), RunId::from("run-1"));
        let id = |place| build(&webhook(None), &facts(&run, &params), place).id;
        assert_eq!(id("on_failure/0"), id("on_failure/0"));
        assert_ne!(id("on_failure/0"), id("on_failure/1"));
    }
}
