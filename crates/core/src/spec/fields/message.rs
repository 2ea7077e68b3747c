//! The fields of actions that send a message: `webhook`, `slack`, `email`.

use crate::limits;
use crate::span::Span;

fields! {
    [Webhook, Slack, Email] "action": "What is sent: a `webhook` with a JSON body, a message to a `slack`-compatible \
        service, or an `email`." => {
        "enum": ["webhook", "slack", "email"], "examples": ["webhook"]
    },
    [Webhook, Slack] "url": "Where the message is sent to, by POST. Addresses of the server itself, link-local addresses and \
        the metadata of clouds need the server's setting `hooks_allow`." => {
        "$ref": "#/$defs/url", "examples": ["https://hooks.example/downbeat"]
    },
    [Webhook] "body": "The JSON body: a map or list, whose texts may have expressions with `event`, `run` and `params`. The \
        default has event, job, run, status, error and times." => {
        "$ref": "#/$defs/message_body", "examples": [{"text": "{{ run.job }}: {{ event.error }}"}]
    },
    [Webhook] "secret_env": "The variable of the server's environment with the secret that signs the message. Excludes \
        `secret_file`." => {
        "type": "string", "minLength": 1, "examples": ["DEPLOY_HOOK_SECRET"]
    },
    [Webhook] "secret_file": "The file on the server with the secret that signs the message. Excludes `secret_env`." => {
        "type": "string", "minLength": 1, "examples": ["/etc/downbeat/hook.secret"]
    },
    [Slack, Email] "text": "The text, which may have expressions with `event`, `run` and `params`. The default names job, \
        run, state and error." => {
        "type": "string", "examples": ["{{ run.job }} failed: {{ event.error }}"]
    },
    [Email] "to": "The addresses: one, or a list." => {
        "$ref": "#/$defs/recipients", "examples": [["ops@example.org"]]
    },
    [Email] "subject": "The subject, which may have expressions. The default names the job and what happened." => {
        "type": "string", "examples": ["{{ run.job }}: {{ event.name }}"]
    },
    [Webhook, Slack, Email] "timeout": "How long one try may take, 1s to 1m." => {
        "$ref": "#/$defs/duration", "default": Span::from_secs(limits::MESSAGE_TIMEOUT_DEFAULT_S).to_string(),
        "examples": ["5s"]
    },
}
