//! The fields of tasks and branches.

use crate::backend::Catalogue;
use crate::limits;
use crate::span::Span;

fields! {
    [Task, Branch, Leaf] "name": "The name of the task, unique in the job. `depends_on` and expressions refer to it." => {
        "$ref": "#/$defs/label", "examples": ["install"]
    },
    [Task, Leaf] "backend": "What carries out the action: a built-in backend, or one that the nodes declare." => {
        "anyOf": [{"enum": Catalogue::builtin().names()}, {"type": "string"}], "examples": ["exec"]
    },
    [Task, Leaf] "action": "What the backend does." => {"type": "string", "examples": ["run"]},
    [Task, Leaf] "params": "The params of the action. Strings may hold expressions: `{{ params.version }}`." => {
        "type": ["object", "null"], "examples": [{"command": ["echo", "hello"]}]
    },
    [Task, Leaf] "timeout": "The time limit of one attempt, 1s to 24h. Its whole process tree gets TERM, then KILL." => {
        "$ref": "#/$defs/duration",
        "default": Span::from_secs(limits::TASK_TIMEOUT_DEFAULT_S).to_string(),
        "examples": ["90s"]
    },
    [Task, Leaf] "max_retries": "How often a failed instance is retried: after 1s, 2s, 4s, … and at most 30s, each with \
        jitter. Short for `retry: {max: N}`; excludes `retry`." => {
        "type": "integer", "minimum": 0, "maximum": limits::RETRIES, "default": 0, "examples": [3]
    },
    [Task, Leaf] "retry": "How often a failed instance is retried, and the delays between attempts." => {
        "$ref": "#/$defs/retry", "examples": [{"max": 3, "delay": "5s", "factor": 2, "max_delay": "1m"}]
    },
    [Task, Branch, Leaf] "condition": "When the task runs: `on_success` only if nothing failed before it, `on_failure` only if \
        something did, `always` in both cases. Inside a branch it looks at the branch on the same node. Without a condition, \
        `strategy` decides." => {
        "enum": ["always", "on_success", "on_failure"], "examples": ["on_failure"]
    },
    [Task, Branch] "depends_on": "The names of the tasks that must end before this one starts. It makes the list a graph; \
        `[]` means that the task depends on nothing." => {
        "$ref": "#/$defs/names", "uniqueItems": true, "examples": [["build"]]
    },
    [Task, Branch] "for_each": "Runs the task or branch once for each item of a list. `{{ item }}` and `{{ index }}` are the \
        item and its number. Only for placed tasks." => {
        "$ref": "#/$defs/for_each",
        "examples": [["eu", "us"], "{{ steps.build.outputs.shards }}", {"items": ["eu", "us"], "max_parallel": 1}]
    },
    [Task, Leaf] "outputs": "The names of the values that the task returns. A task that succeeds without setting all of them \
        fails. Later tasks use them as `{{ steps.NAME.outputs.x }}`." => {
        "type": "array",
        "maxItems": limits::OUTPUTS_PER_TASK,
        "uniqueItems": true,
        "items": {"$ref": "#/$defs/word"},
        "examples": [["version"]]
    },
    [Task, Leaf] "cache": "Uses an earlier result with equal backend, action, params and outputs instead of running the task. \
        `--no-cache` runs everything." => {
        "$ref": "#/$defs/cache", "default": false, "examples": [true, {"max_age": "24h"}]
    },
    [Task, Leaf] "delivery": "Whether an attempt that was lost with its node is retried: `at_least_once` yes, `at_most_once` \
        no. By default, placed tasks and idempotent actions are." => {
        "enum": ["at_least_once", "at_most_once"], "examples": ["at_most_once"]
    },
    [Task, Leaf] "on_disconnect": "What happens to running work whose lease could not be renewed for a full term. `continue`: \
        it goes on. `stop`: it is killed, even if its agent is killed or frozen, so that two attempts never overlap." => {
        "enum": ["continue", "stop"], "default": "continue", "examples": ["stop"]
    },
    [Task] "approve": "Waits until a person approves: `downbeat run approve RUN STEP`. Instead of `backend` and `action`; \
        beside it, the task has only `name`, `condition` and `depends_on`." => {
        "$ref": "#/$defs/approve", "examples": [{"message": "Deploy to production?", "timeout": "4h"}]
    },
    [Branch] "tasks": "The tasks of the branch. Each node runs them in order, at its own pace." => {
        "type": "array", "minItems": 1, "items": {"$ref": "#/$defs/leaf"}, "examples": [[{"backend": "ping", "action": "ping"}]]
    },
}
