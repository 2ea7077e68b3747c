//! The fields of a job, and those that a job sets for tasks that do not set them.

use crate::limits;
use crate::span::Span;
use crate::spec::parse::PRIORITIES;

fields! {
    [Job] "name": "The name of the job. Runs and events show it, and runs of one job take turns." => {
        "$ref": "#/$defs/identifier", "examples": ["deploy-web"]
    },
    [Job] "cluster": "The cluster whose nodes the job uses." => {
        "$ref": "#/$defs/cluster_name", "default": "default", "examples": ["default"]
    },
    [Job, Task] "target": "Fan out: runs the task on each of these nodes. The value is a selector, or a map. On the job it \
        applies to every task that has neither `target` nor `placement`. Excludes `placement`." => {
        "$ref": "#/$defs/target",
        "examples": ["all", "group:web", "group:web and label.disk = ssd and not node:web-09", {"scope": "group", "value": "web"}]
    },
    [Job, Task] "placement": "Runs the task once, on one node that fits. On the job it applies to every task that has \
        neither `target` nor `placement`. A job without `target` and `placement` places its tasks on any node that offers \
        their backends." => {
        "$ref": "#/$defs/placement", "examples": [{"labels": ["worker"], "requires": {"cpu": 4}}]
    },
    [Job, Task, Leaf] "placement_timeout": "How long a placed task may wait while no node fits it, 1s to 24h; then it fails. \
        Waiting for a free slot, for a limit or for its turn does not count. The task's value overrides the job's." => {
        "$ref": "#/$defs/duration",
        "default": Span::from_secs(limits::PLACEMENT_TIMEOUT_DEFAULT_S).to_string(),
        "examples": ["5m"]
    },
    [Job] "strategy": "What happens when a step fails. `fail-fast`: running steps finish, steps that have not started are skipped, and `on_failure` steps run. \
        `continue`: the failed node takes no further part (in a graph: tasks that depend on the failed one are skipped), and \
        the rest continues. Excludes `rollout`." => {
        "enum": ["fail-fast", "continue"], "default": "fail-fast", "examples": ["continue"]
    },
    [Job] "rollout": "Divides the nodes of the job's `target` into waves: each wave runs the whole list before the next wave \
        starts. Excludes `strategy`, `depends_on`, and `target` or `placement` on tasks." => {
        "$ref": "#/$defs/rollout", "examples": [{"batch": [1, "10%", "50%"], "pause": "5m", "max_failures": 2}]
    },
    [Job] "exclusive": "The run holds its nodes from its start to its end: no other run executes anything on them in the \
        meantime. Every task must have a target." => {
        "type": "boolean", "default": false, "examples": [true]
    },
    [Job] "priority": "The order among waiting runs, and among work that waits for nodes: higher values first, then the \
        oldest." => {
        "type": "integer", "minimum": *PRIORITIES.start(), "maximum": *PRIORITIES.end(), "default": 0, "examples": [10]
    },
    [Job] "params": "The params of the job with their defaults; `--param NAME=VALUE` sets them. `null` means that the value \
        must be given. Tasks use them as `{{ params.NAME }}`." => {
        "type": ["object", "null"],
        "propertyNames": {"$ref": "#/$defs/word"},
        "examples": [{"version": null, "replicas": 3}]
    },
    [Job] "timeout": "The time limit of the whole run, 1s to 30d. When it is over, running steps are ended, and `on_failure` \
        steps run." => {
        "$ref": "#/$defs/duration", "examples": ["2h"]
    },
    [Job] "cleanup_timeout": "How long the `on_failure` steps may take after the run timed out, 1s to 24h; default 10m." => {
        "$ref": "#/$defs/duration", "examples": ["5m"]
    },
    [Job] "retry": "How often a run that failed, or timed out, is retried as a whole, and the delays before it. Each round does \
        everything again, from the first task." => {
        "$ref": "#/$defs/retry", "examples": [{"max": 3, "delay": "1m", "factor": 2, "max_delay": "10m"}]
    },
    [Job] "max_parallel": "How many executions of the run may be open at once: waiting for a node, running, or waiting for \
        their next attempt." => {
        "$ref": "#/$defs/parallel", "examples": [50]
    },
    [Job, Task, Leaf] "limits": "Limits that all runs of the cluster share: `db: 4` is at most 4 at once, `api: 100/1m` at \
        most 100 starts per minute. Each execution of the task uses one of each. On the job they apply to each of its tasks. \
        A key may hold expressions." => {
        "$ref": "#/$defs/limits", "examples": [{"db": 4, "api": "100/1m"}]
    },
    [Job] "schedule": "When the job starts by itself: a cron expression, a map, or a list of them. It holds for \
        stored jobs (`job apply -f FILE`); `schedule preview -f FILE` shows the times." => {
        "anyOf": [
            {"$ref": "#/$defs/schedule"},
            {
                "type": "array", "minItems": 1, "maxItems": limits::SCHEDULES_PER_JOB,
                "items": {"$ref": "#/$defs/schedule"}
            }
        ],
        "examples": ["@daily", {"cron": "0 3 * * MON-FRI", "timezone": "Europe/Berlin", "catch_up": "1h"}]
    },
    [Job] "overlap": "What happens while another run of the job is active. `skip`: the run is skipped. `queue`: it waits. \
        `queue_latest`: it waits, and replaces a run that waits. `replace`: older runs are cancelled. Excludes \
        `max_concurrent_runs`." => {
        "enum": ["allow", "skip", "queue", "queue_latest", "replace"], "default": "allow", "examples": ["skip"]
    },
    [Job] "constraints": "What must hold before a run of the job starts, and after it. `on_violation` sets what happens if \
        it does not." => {
        "$ref": "#/$defs/constraints",
        "examples": [{"max_concurrent_runs": 1, "require_previous_success": true, "max_expected": "10m", "max_allowed": "1h"}]
    },
    [Job] "on_violation": "What happens when a constraint is violated: an action, or a list of them. Without it the run is \
        skipped." => {
        "$ref": "#/$defs/life_actions", "examples": [{"action": "wait"}, [{"action": "webhook", "url": "https://example.com/alert"}, {"action": "skip"}]]
    },
    [Job] "on_success": "What follows a run that completed: an action, or a list of them." => {
        "$ref": "#/$defs/calls", "examples": [{"action": "trigger_job", "job": "report"}]
    },
    [Job] "on_failure": "What follows a run that started and failed: an action, or a list of them." => {
        "$ref": "#/$defs/calls", "examples": [{"action": "webhook", "url": "https://example.com/alert"}]
    },
    [Job] "deadline": "The run fails if it has not started within this time after its creation, 1s to 30d." => {
        "$ref": "#/$defs/duration", "examples": ["1h"]
    },
    [Job] "triggers": "What else starts the job: requests over HTTP, the ends of runs of other jobs, events. They hold for \
        stored jobs (`job apply -f FILE`)." => {
        "type": "array", "minItems": 1, "maxItems": limits::TRIGGERS_PER_JOB,
        "items": {"$ref": "#/$defs/trigger"},
        "examples": [[{"http": {"path": "deploy-web", "auth": "github", "secret_env": "DEPLOY_WEB_SECRET"}}]]
    },
    [Job] "tasks": "What the job does: tasks, and branches of tasks. They run one after the other, or as `depends_on` says." => {
        "type": "array",
        "minItems": 1,
        "maxItems": limits::STEPS_PER_RUN,
        "items": {
            "if": {"type": "object", "required": ["tasks"]},
            "then": {"$ref": "#/$defs/branch"},
            "else": {"$ref": "#/$defs/task"}
        },
        "examples": [[{"backend": "ping", "action": "ping"}]]
    },
}
