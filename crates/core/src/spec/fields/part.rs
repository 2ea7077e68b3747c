//! The fields of the maps inside a job or task: `target`, `placement`, `rollout`, `retry`, `for_each`, `cache`,
//! `schedule`.

use crate::limits;
use crate::span::Span;
use crate::spec::{Preference, Retry};

fields! {
    [Target] "scope": "Which nodes: all of them, those of a group, or one node." => {
        "enum": ["all", "group", "node"], "examples": ["group"]
    },
    [Target] "value": "The name of the group or node. Not with `scope: all`." => {
        "type": "string", "minLength": 1, "examples": ["web"]
    },

    [Placement] "requires": "Capabilities of the node: a string must be equal, a number is the minimum." => {
        "$ref": "#/$defs/requires", "examples": [{"gpu": "nvidia", "cpu": 4}]
    },
    [Placement] "labels": "Labels of the node, each `name` or `name=value`." => {
        "$ref": "#/$defs/names", "examples": [["worker", "disk=ssd"]]
    },
    [Placement] "backends": "Backends that the node must offer in addition to the task's own." => {
        "$ref": "#/$defs/names", "examples": [["docker"]]
    },
    [Placement] "allow": "Only these nodes, by hostname or id." => {
        "$ref": "#/$defs/names", "examples": [["web-01", "web-02"]]
    },
    [Placement] "forbid": "Never these nodes, by hostname or id." => {"$ref": "#/$defs/names", "examples": [["web-09"]]},
    [Placement] "max_per_node": "How many executions of this run one node may hold at once." => {
        "type": "integer", "minimum": 1, "maximum": limits::STEPS_PER_RUN, "examples": [1]
    },
    [Placement] "prefer": "Preferences among the nodes that fit: the node with the highest total weight comes first. They \
        never make a task wait." => {
        "type": "array",
        "maxItems": limits::PREFERENCES,
        "items": {"$ref": "#/$defs/preference"},
        "examples": [[{"labels": ["disk=ssd"], "weight": 10}]]
    },
    [Placement] "spread": "Spreads the executions of the run over nodes (`node`), or over the groups of nodes that have the \
        same value of a label." => {
        "$ref": "#/$defs/spread", "examples": ["node", {"label": "zone"}]
    },

    [Preference] "requires": "Capabilities, as in `placement`." => {"$ref": "#/$defs/requires", "examples": [{"cpu": 8}]},
    [Preference] "labels": "Labels, as in `placement`." => {"$ref": "#/$defs/names", "examples": [["disk=ssd"]]},
    [Preference] "nodes": "One of these nodes, by hostname or id." => {"$ref": "#/$defs/names", "examples": [["web-01"]]},
    [Preference] "weight": "How much better a node is that satisfies the whole preference." => {
        "type": "integer", "minimum": 1, "maximum": limits::WEIGHT_MOST, "default": Preference::default().weight,
        "examples": [10]
    },

    [Spread] "label": "The label whose values form the groups. Nodes without the label are one group." => {
        "type": "string", "minLength": 1, "examples": ["zone"]
    },

    [Rollout] "batch": "The size of a wave: a number of nodes, or a percentage of all nodes. A list sets the size of one wave \
        after the other; its last entry repeats." => {
        "anyOf": [
            {"$ref": "#/$defs/wave"},
            {"type": "array", "minItems": 1, "maxItems": limits::BATCH_AMOUNTS, "items": {"$ref": "#/$defs/wave"}}
        ],
        "examples": [10, "25%", [1, "10%", "50%"]]
    },
    [Rollout] "pause": "The pause between the end of a wave and the start of the next, up to 30d." => {
        "$ref": "#/$defs/duration", "default": "0s", "examples": ["5m"]
    },
    [Rollout] "max_failures": "How many nodes may fail over the whole roll-out: a number, or a percentage of all nodes. One \
        more, and no further wave starts." => {
        "$ref": "#/$defs/amount", "default": 0, "examples": [2, "5%"]
    },

    [Approve] "message": "What the person is asked." => {
        "type": "string", "minLength": 1, "maxLength": limits::APPROVAL_TEXT_BYTES, "examples": ["Deploy to production?"]
    },
    [Approve] "timeout": "How long the step waits, 1s to 30d. Then it fails." => {
        "$ref": "#/$defs/duration",
        "default": Span::from_secs(limits::APPROVAL_TIMEOUT_DEFAULT_S).to_string(),
        "examples": ["4h"]
    },

    [Retry] "max": "How often a failed instance is retried; on a job, a failed run." => {
        "type": "integer", "minimum": 0, "maximum": limits::RETRIES, "examples": [3]
    },
    [Retry] "delay": "The longest delay before the first retry, up to 24h. The actual delay is random (full jitter)." => {
        "$ref": "#/$defs/duration", "default": Retry::default_delay().to_string(), "examples": ["5s"]
    },
    [Retry] "factor": "How much the delay grows with each retry." => {
        "type": "number", "minimum": 1, "maximum": 100, "default": Retry::default_factor(), "examples": [1.5]
    },
    [Retry] "max_delay": "The upper bound of the delay, up to 24h." => {
        "$ref": "#/$defs/duration", "default": Retry::default_max_delay().to_string(), "examples": ["1m"]
    },

    [ForEach] "items": "The items: a list, or one expression that evaluates to a list." => {
        "$ref": "#/$defs/items", "examples": [["eu", "us"], "{{ steps.build.outputs.shards }}"]
    },
    [ForEach] "max_parallel": "How many items may run at once." => {"$ref": "#/$defs/parallel", "examples": [8]},

    [Schedule] "cron": "A cron expression: minute, hour, day of the month, month and weekday, optionally with the second \
        first; or @hourly, @daily, @weekly, @monthly, @yearly, or @every with a duration. Excludes `every`." => {
        "$ref": "#/$defs/cron", "examples": ["30 3 * * *", "*/10 * * * * *", "@daily"]
    },
    [Schedule] "every": "An interval of whole seconds, 1s to 366d: all its multiples since 1970-01-01 00:00 UTC. Excludes \
        `cron`." => {
        "$ref": "#/$defs/duration", "examples": ["5m"]
    },
    [Schedule] "timezone": "The time zone of the expression and of `exclude`, by its name in the IANA database." => {
        "type": "string", "minLength": 1, "default": "UTC", "examples": ["Europe/Berlin"]
    },
    [Schedule] "catch_up": "What happens to times at which no server could start the job. A duration is the longest delay of \
        a start; later ones are skipped. `none` starts nothing late." => {
        "$ref": "#/$defs/catch_up", "default": "1m", "examples": ["1h", "none", {"window": "12h", "policy": "latest"}]
    },
    [Schedule] "exclude": "Days on which the job does not start." => {
        "$ref": "#/$defs/exclude", "examples": [{"weekdays": ["sat", "sun"], "dates": ["2026-12-24", "01-01"]}]
    },
    [Schedule] "jitter": "Delays each start by up to this duration, at most 1h. The delay depends on the job and the time: it \
        is the same on every server." => {
        "$ref": "#/$defs/duration", "default": "0s", "examples": ["10m"]
    },

    [CatchUp] "window": "The longest delay of a start, 1s to 30d." => {"$ref": "#/$defs/duration", "examples": ["12h"]},
    [CatchUp] "policy": "`all` starts the job for each missed time, `latest` only for the last one, `none` for none of them." => {
        "enum": ["all", "latest", "none"], "default": "all", "examples": ["latest"]
    },

    [Exclude] "dates": "Dates: `2026-12-24` is one day, `12-24` the day in every year." => {
        "type": "array",
        "maxItems": limits::EXCLUDED_DATES,
        "items": {"$ref": "#/$defs/date"},
        "examples": [["2026-12-24", "01-01"]]
    },
    [Exclude] "weekdays": "Weekdays, such as `sat` or `saturday`." => {
        "type": "array", "items": {"$ref": "#/$defs/weekday"}, "examples": [["sat", "sun"]]
    },

    [Cache] "max_age": "The maximum age of the result, 1s to 30d." => {"$ref": "#/$defs/duration", "examples": ["24h"]},
}
