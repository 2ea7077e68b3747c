//! The fields of the maps about the life of runs: `constraints`, hooks and actions.

use crate::limits;
use crate::span::Span;

fields! {
    [Constraints] "max_concurrent_runs": "How many runs of the job may be active at once, in the cluster. Excludes \
        `overlap`." => {
        "type": "integer", "minimum": 1, "maximum": limits::CONCURRENT_RUNS_MOST, "examples": [1]
    },
    [Constraints] "require_previous_success": "The last run of the job that started and ended must have completed. It does \
        not hold for `run retry`." => {
        "type": "boolean", "default": false, "examples": [true]
    },
    [Constraints] "max_expected": "A run that takes longer violates the constraint: the calls of `on_violation` follow its \
        end. 1s to 30d." => {
        "$ref": "#/$defs/duration", "examples": ["10m"]
    },
    [Constraints] "max_allowed": "A run that takes longer is stopped as by `timeout`, and fails. 1s to 30d." => {
        "$ref": "#/$defs/duration", "examples": ["1h"]
    },
    [Constraints] "pre_run_hook": "An HTTP call before the run starts. 2xx allows it, 3xx and 4xx violate the constraint; with \
        any other answer, or none, the constraint cannot be checked." => {
        "$ref": "#/$defs/hook", "examples": [{"url": "https://example.com/may-run"}]
    },
    [Constraints] "post_run_hook": "An HTTP call after the plan of the run has ended, with the same meaning." => {
        "$ref": "#/$defs/hook", "examples": [{"url": "https://example.com/verify", "timeout": "30s"}]
    },
    [Constraints, Hook] "if_unknown": "What happens if a constraint cannot be checked before the run: `allow` starts it, `skip` skips \
        it. A hook's value overrides that of `constraints`." => {
        "enum": ["skip", "allow"], "default": "allow", "examples": ["skip"]
    },

    [Hook] "url": "Where the call goes: POST with a JSON body about the run." => {
        "$ref": "#/$defs/url", "examples": ["https://example.com/may-run"]
    },
    [Hook] "timeout": "How long the call may take, 1s to 5m." => {
        "$ref": "#/$defs/duration",
        "default": Span::from_secs(limits::HOOK_TIMEOUT_DEFAULT_S).to_string(),
        "examples": ["30s"]
    },
    [Hook] "headers": "Headers of the call. They are stored and shown as written." => {
        "type": "object",
        "maxProperties": limits::HOOK_HEADERS,
        "additionalProperties": {"type": "string"},
        "examples": [{"x-team": "web"}]
    },

    [Action] "action": "`skip` completes the run without starting it; `retry_later` checks again after `delay`; `kill_old` \
        cancels older runs of the job and waits until they have ended; `wait` waits until another run of the job has ended. \
        These four are for `on_violation` only, which has at most one of them. `trigger_job` starts the stored job `job` of \
        the same cluster. `webhook`, `slack` and `email` send a message, and have other fields." => {
        "enum": ["skip", "retry_later", "kill_old", "wait", "trigger_job"], "examples": ["skip"]
    },
    [Action] "delay": "For `retry_later`: 1s to 24h." => {"$ref": "#/$defs/duration", "examples": ["5m"]},
    [Action] "job": "For `trigger_job`: the name of the job." => {"$ref": "#/$defs/identifier", "examples": ["report"]},
    [Action] "params": "For `trigger_job`: values for the params of the job." => {
        "type": ["object", "null"], "examples": [{"day": "monday"}]
    },
    [Action, Webhook, Slack, Email] "critical": "The run fails if the action fails. Otherwise the failure is recorded, and the run \
        goes on. With a message, the run waits until the message was delivered." => {
        "type": "boolean", "default": false, "examples": [true]
    },
}
