//! The fields of the maps inside a job or task: `target`, `placement`, `rollout`, `retry`, `for_each`, `cache`.

use crate::limits;
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

    [Retry] "max": "How often a failed instance is retried." => {
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

    [Cache] "max_age": "The maximum age of the result, 1s to 30d." => {"$ref": "#/$defs/duration", "examples": ["24h"]},
}
