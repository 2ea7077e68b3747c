//! The fields of the maps inside `triggers`.

use crate::spec::{EventKind, HookAuth, RunEnding};

fields! {
    [Trigger] "http": "A request to `POST /hooks/PATH` starts the job." => {
        "$ref": "#/$defs/http_trigger",
        "examples": [{"path": "deploy-web", "auth": "github", "secret_env": "DEPLOY_WEB_SECRET"}]
    },
    [Trigger] "job": "The end of a run of another job starts the job." => {
        "$ref": "#/$defs/job_trigger", "examples": [{"name": "build", "on": "success"}]
    },
    [Trigger] "event": "An event of the cluster starts the job." => {
        "$ref": "#/$defs/event_trigger", "examples": [{"kind": "node_registered", "group": "web"}]
    },

    [HttpTrigger] "path": "The last part of the URL. Over all jobs of all clusters, one trigger has it." => {
        "$ref": "#/$defs/identifier", "examples": ["deploy-web"]
    },
    [HttpTrigger] "auth": "How the sender proves that it knows the secret: `secret` sends it, `github` and `slack` sign the \
        body. `none` lets every client start the job." => {
        "enum": HookAuth::ALL.map(HookAuth::as_str), "examples": ["github"]
    },
    [HttpTrigger] "secret_env": "The variable of the servers' environment that has the secret. Excludes `secret_file`." => {
        "$ref": "#/$defs/word", "examples": ["DEPLOY_WEB_SECRET"]
    },
    [HttpTrigger] "secret_file": "The file on the servers' machines that has the secret. Excludes `secret_env`." => {
        "type": "string", "pattern": "^/", "examples": ["/etc/downbeat/deploy-web.secret"]
    },
    [HttpTrigger] "params": "Values for the job's params. Expressions use the body of the request, as in \
        `{{ payload.ref }}`, and `trigger.path`, `trigger.event` (`X-GitHub-Event`), `trigger.delivery` \
        (`X-GitHub-Delivery`)." => {
        "$ref": "#/$defs/given", "examples": [{}]
    },

    [JobTrigger] "name": "The other job, of the same cluster." => {"$ref": "#/$defs/identifier", "examples": ["build"]},
    [JobTrigger] "on": "Which ends of its runs: `success` (completed), `failure` (failed, not cancelled), `always`." => {
        "enum": RunEnding::ALL.map(RunEnding::as_str), "default": RunEnding::default().as_str(), "examples": ["failure"]
    },
    [JobTrigger] "params": "Values for the job's params. Expressions use `trigger.run`, `trigger.job`, `trigger.status`." => {
        "$ref": "#/$defs/given", "examples": [{}]
    },

    [EventTrigger] "kind": "The kind of event." => {
        "enum": EventKind::ALL.map(EventKind::as_str), "examples": ["node_registered"]
    },
    [EventTrigger] "group": "Only events of nodes in this group." => {
        "type": "string", "minLength": 1, "examples": ["web"]
    },
    [EventTrigger] "job": "Only events of runs of this job. Runs of the job itself never count." => {
        "$ref": "#/$defs/identifier", "examples": ["build"]
    },
    [EventTrigger] "params": "Values for the job's params. Expressions use `trigger.event`, and `trigger.node` (hostname) or \
        `trigger.run`, `trigger.job`, `trigger.status`." => {
        "$ref": "#/$defs/given", "examples": [{}]
    },
}
