//! Reads an action that sends a message: `webhook`, `slack` or `email`.

use serde_json::Value;

use super::field::{Checker, Hint};
use super::path::Path;
use super::standing::{check, read_json};
use super::tree::{Content, Entry, Node};
use crate::backend::{Catalogue, Params};
use crate::expr::Template;
use crate::limits;
use crate::outbound::check_url;
use crate::shown::shown;
use crate::span::Span;
use crate::spec::{Notification, On, Problem, SecretSource};

/// The names that other tools use for the fields of a notification.
const OTHER_NAMES: &[Hint] = &[
    ("payload", "did you mean `body`?"),
    ("template", "did you mean `body`?"),
    ("message", "did you mean `text`?"),
    ("secret", "did you mean `secret_env` or `secret_file`?"),
    ("address", "did you mean `to`?"),
];

impl Checker<'_> {
    /// Reads the fields of an action in `Notification::ACTIONS`.
    pub(super) fn notification(
        &mut self,
        path: Path<'_>,
        node: &Node<'_>,
        entries: &[Entry<'_>],
        action: &str,
    ) -> Option<Notification> {
        let map = match action {
            "webhook" => On::Webhook,
            "slack" => On::Slack,
            _ => On::Email,
        };
        let (mut url, mut body, mut text, mut to, mut subject) = (None, None, None, None, None);
        let (mut secret, mut timeout) = (None, None);
        for entry in entries {
            let (field, value) = (path.field(&entry.key), &entry.value);
            match (map, entry.key.as_ref()) {
                (_, "action" | "critical") => {}
                (_, "timeout") => {
                    let range = Span::from_secs(1)..=Span::from_secs(limits::MESSAGE_TIMEOUT_MOST_S);
                    timeout = self.span(field, value, range);
                }
                (On::Webhook | On::Slack, "url") => url = self.url(field, value),
                (On::Webhook, "body") => body = self.body(field, value),
                (On::Webhook, "secret_env" | "secret_file") => {
                    if secret.is_some() {
                        self.problem(field, entry.at, "a webhook has either `secret_env` or `secret_file`");
                    }
                    secret = self.secret(field, value, &entry.key);
                }
                (On::Slack | On::Email, "text") => text = self.message_text(field, value),
                (On::Email, "subject") => subject = self.message_text(field, value),
                (On::Email, "to") => to = self.recipients(field, value),
                _ => self.unknown_field(path, entry, &[map], OTHER_NAMES),
            }
        }
        let mut required = |name: &str, example: &str| {
            if !entries.iter().any(|entry| entry.key == name) {
                self.problem(
                    path,
                    node.at,
                    format!("the field `{name}` is missing, such as {name}: {example}"),
                );
            }
        };
        match map {
            On::Webhook => {
                required("url", "https://hooks.example/path");
                Some(Notification::Webhook { url: url?, body, secret, timeout })
            }
            On::Slack => {
                required("url", "https://hooks.slack.com/services/…");
                Some(Notification::Slack { url: url?, text, timeout })
            }
            _ => {
                required("to", "[ops@example.org]");
                Some(Notification::Email { to: to?, subject, text, timeout })
            }
        }
    }

    pub(super) fn url(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<String> {
        let url = self.text(path, node, "a URL such as https://hooks.example/path")?;
        if url.len() > limits::URL_BYTES {
            let message = format!("has {} bytes; at most {} are allowed", url.len(), limits::URL_BYTES);
            return self.refuse(path, node.at, message);
        }
        match check_url(url) {
            Ok(()) => Some(url.to_owned()),
            Err(wrong) => self.refuse(path, node.at, format!("`{}` {wrong}", shown(url))),
        }
    }

    /// Reads the body of a webhook. It is JSON whatever its expressions evaluate to: they are inside of texts.
    fn body(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Value> {
        if !matches!(node.content(), Content::Map(_) | Content::List(_)) {
            return self.refuse_kind(
                path,
                node,
                "a map or a list, whose texts may contain {{ expressions }}",
            );
        }
        let body = node.to_value();
        self.message_template(path, node, &body)?;
        Some(body)
    }

    fn message_text(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<String> {
        let text = self.text(path, node, "a text, which may contain {{ expressions }}")?;
        self.message_template(path, node, &Value::from(text))?;
        Some(text.to_owned())
    }

    /// Checks size and expressions.
    fn message_template(&mut self, path: Path<'_>, node: &Node<'_>, value: &Value) -> Option<()> {
        let bytes = value.to_string().len();
        if bytes > limits::MESSAGE_BODY_BYTES {
            let message = format!("has {bytes} bytes; at most {} are allowed", limits::MESSAGE_BODY_BYTES);
            return self.refuse(path, node.at, message);
        }
        let params = Params::from([("body".to_owned(), value.clone())]);
        match Template::of("", "", &params) {
            Err(problem) => self.refuse(path, node.at, problem.message),
            Ok(Some(template)) => {
                let used = template.references();
                if used.steps.is_empty() && !used.node && !used.item {
                    return Some(());
                }
                let message = "a message can use `event`, `run` and `params`, such as {{ event.error }}";
                self.refuse(path, node.at, message)
            }
            Ok(None) => Some(()),
        }
    }

    fn secret(&mut self, path: Path<'_>, node: &Node<'_>, key: &str) -> Option<SecretSource> {
        match key {
            "secret_env" => self.env_name(path, node).map(SecretSource::Env),
            _ => self.absolute(path, node).map(SecretSource::File),
        }
    }

    fn recipients(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Vec<String>> {
        let to = match node.content() {
            Content::Text(one) => vec![one.to_string()],
            _ => self.texts(path, node, "addresses")?,
        };
        let most = limits::EMAIL_RECIPIENTS;
        if !(1..=most).contains(&to.len()) {
            let message = format!("has {} addresses, but needs 1 to {most}", to.len());
            return self.refuse(path, node.at, message);
        }
        for address in &to {
            let is_plain = |part: &str| {
                !part.is_empty() && !part.contains(|c: char| c.is_whitespace() || c.is_control())
            };
            let parts = address.rsplit_once('@');
            if !parts.is_some_and(|(name, domain)| {
                is_plain(name) && is_plain(domain) && !name.contains(['<', ',', ';'])
            }) {
                let message = format!("`{}` is not an address; write name@example.org", shown(address));
                return self.refuse(path, node.at, message);
            }
        }
        Some(to)
    }
}

/// Reads an action that sends a message from JSON.
pub fn notification_of_json(value: &Value) -> Result<Notification, Vec<Problem>> {
    let catalogue = Catalogue::builtin();
    read_json(value, |tree| {
        check(&catalogue, |checker| {
            let entries = checker.fields_of(Path::Top, tree, On::Webhook)?;
            let Some(action) = entries.iter().find(|entry| entry.key == "action") else {
                return checker.refuse(
                    Path::Top,
                    tree.at,
                    "the field `action` is missing: webhook, slack or email",
                );
            };
            match action.value.as_text() {
                Some(name) if Notification::ACTIONS.contains(&name) => {
                    checker.notification(Path::Top, tree, entries, name)
                }
                _ => checker.refuse_kind(Path::Top.field("action"), &action.value, "webhook, slack or email"),
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_notification_is_read_with_its_fields() {
        let webhook = json!({"action": "webhook", "url": "https://a.example/x", "secret_env": "S", "timeout": "5s",
            "body": {"text": "{{ event.error }}"}});
        let expected = Notification::Webhook {
            url: "https://a.example/x".to_owned(),
            body: Some(json!({"text": "{{ event.error }}"})),
            secret: Some(SecretSource::Env("S".to_owned())),
            timeout: Some(Span::from_secs(5)),
        };
        assert_eq!(notification_of_json(&webhook), Ok(expected));
        let email = json!({"action": "email", "to": "ops@example.org"});
        let to = vec!["ops@example.org".to_owned()];
        let expected = Notification::Email { to, subject: None, text: None, timeout: None };
        assert_eq!(notification_of_json(&email), Ok(expected.clone()));
        let stored = serde_json::to_value(&expected).unwrap();
        assert_eq!(serde_json::from_value::<Notification>(stored).unwrap(), expected);
    }

    #[test]
    fn mistakes_are_named_where_they_are() {
        for (value, path, message) in [
            (json!({"url": "https://a"}), "", "`action` is missing"),
            (json!({"action": "fax"}), "action", "webhook, slack or email"),
            (json!({"action": "webhook"}), "", "`url` is missing"),
            (json!({"action": "webhook", "url": "ftp://a"}), "url", "scheme"),
            (json!({"action": "webhook", "url": "https://a", "body": "x"}), "body", "a map or a list"),
            (json!({"action": "webhook", "url": "https://a", "body": {"x": "{{ event. }}"}}), "body", ""),
            (
                json!({"action": "webhook", "url": "https://a", "body": {"x": "{{ event.nope }}"}}),
                "body",
                "event",
            ),
            (
                json!({"action": "webhook", "url": "https://a", "body": {"x": "{{ node.id }}"}}),
                "body",
                "can use",
            ),
            (json!({"action": "webhook", "url": "https://a", "timeout": "5m"}), "timeout", "from 1s to 1m"),
            (json!({"action": "webhook", "url": "https://a", "secret_env": "A-B"}), "secret_env", "variable"),
            (json!({"action": "webhook", "url": "https://a", "secret_file": "x"}), "secret_file", "absolute"),
            (json!({"action": "webhook", "url": "https://a", "secret": "x"}), "secret", "secret_env"),
            (json!({"action": "slack", "url": "https://a", "body": {}}), "body", "unknown field"),
            (json!({"action": "email", "to": []}), "to", "needs 1 to"),
            (json!({"action": "email", "to": ["ops"]}), "to", "not an address"),
            (json!({"action": "email", "to": ["a@b\r\nBcc: c@d"]}), "to", ""),
        ] {
            let problems = notification_of_json(&value).unwrap_err();
            assert!(
                problems
                    .iter()
                    .any(|problem| problem.path.starts_with(path) && problem.message.contains(message)),
                "{value}: {problems:?}"
            );
        }
    }
}
