//! Owns the job file's JSON schema, for editors. It describes what `parse` accepts as far as a schema can; what it
//! cannot say (unique names, cycles, what a selector may hold) only `parse` checks.

use serde_json::{Map, Value, json};

use crate::backend::{ActionSchema, Catalogue, ParamKind, ParamSchema};
use crate::limits;

const DURATION: &str = r"^\s*(0|(\d+(\.\d+)?(ms|us|µs|s|m|h|d)\s*)+)\s*$";
/// So many at once, or within a time; the unit alone is one of it.
const LIMIT: &str =
    r"^\s*0*[1-9]\d*\s*(/\s*(\d+(\.\d+)?)?(ms|us|µs|s|m|h|d)\s*(\d+(\.\d+)?(ms|us|µs|s|m|h|d)\s*)*)?$";
/// A name that expressions can use.
const WORD: &str = "^[A-Za-z_][A-Za-z0-9_]*$";
/// What stands for a value of another type.
const EXPRESSION: &str = r"\{\{";
const IDENTIFIER: &str = "^[A-Za-z0-9][A-Za-z0-9._-]*$";

/// The job file's JSON schema (draft 2020-12), with the params of the built-in backends.
pub fn schema() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Downbeat job file",
        "type": "object",
        "required": ["tasks"],
        "additionalProperties": false,
        "allOf": [
            {"not": {"required": ["target", "placement"]}},
            {"not": {"required": ["rollout", "strategy"]}}
        ],
        "dependentRequired": {"rollout": ["target"]},
        "properties": {
            "name": {"$ref": "#/$defs/identifier", "description": "The job's name."},
            "cluster": {"$ref": "#/$defs/identifier", "description": "The cluster that it runs in."},
            "target": {"$ref": "#/$defs/target"},
            "placement": {"$ref": "#/$defs/placement"},
            "strategy": {
                "enum": ["fail-fast", "continue"],
                "default": "fail-fast",
                "description": "What happens to the rest when something fails."
            },
            "rollout": rollout(),
            "exclusive": {
                "type": "boolean",
                "default": false,
                "description": "Holds its nodes from its start to its end: no other run does anything there meanwhile."
            },
            "priority": {
                "type": "integer",
                "minimum": -100,
                "maximum": 100,
                "default": 0,
                "description": "Among runs that wait, and among work that waits for nodes: higher ones first."
            },
            "params": {
                "type": ["object", "null"],
                "description": "What a run may be given, each with its default; null means that it must be given.",
                "propertyNames": {"$ref": "#/$defs/word"}
            },
            "timeout": {"$ref": "#/$defs/duration", "description": "For the whole run: 1s to 30d."},
            "max_parallel": {
                "$ref": "#/$defs/parallel",
                "description": "Executions of the run that may be open at once."
            },
            "limits": {"$ref": "#/$defs/limits"},
            "placement_timeout": {"$ref": "#/$defs/placement_timeout"},
            "tasks": {
                "type": "array",
                "minItems": 1,
                "maxItems": limits::STEPS_PER_RUN,
                "items": {
                    "if": {"type": "object", "required": ["tasks"]},
                    "then": {"$ref": "#/$defs/branch"},
                    "else": {"$ref": "#/$defs/leaf"}
                },
                "description": "What is done: one after the other, or as `depends_on` says."
            }
        },
        "$defs": definitions()
    })
}

fn definitions() -> Value {
    json!({
        "identifier": {"type": "string", "pattern": IDENTIFIER, "maxLength": limits::NAME_BYTES},
        "word": {"type": "string", "pattern": WORD, "maxLength": limits::NAME_BYTES},
        "expression": {"type": "string", "pattern": EXPRESSION, "examples": ["{{ params.version }}"]},
        "label": {"type": "string", "minLength": 1, "maxLength": limits::NAME_BYTES, "pattern": r"^\S(.*\S)?$"},
        "duration": {"type": "string", "pattern": DURATION, "examples": ["500ms", "1.5s", "30m", "1h30m"]},
        "names": {"type": "array", "items": {"type": "string", "minLength": 1}},
        "condition": {
            "enum": ["always", "on_success", "on_failure"],
            "description": "When it runs at all."
        },
        "depends_on": {
            "$ref": "#/$defs/names",
            "uniqueItems": true,
            "description": "Names of the tasks that must end before this one begins."
        },
        "parallel": {"type": "integer", "minimum": 1, "maximum": limits::INSTANCES_PER_RUN},
        "for_each": for_each(),
        "limits": limits_of_tasks(),
        "placement_timeout": {
            "$ref": "#/$defs/duration",
            "description": "How long a task may wait while no node fits it: 1s to 24h; 30m when nothing is said."
        },
        "target": target(),
        "placement": placement(),
        "retry": retry(),
        "branch": {
            "type": "object",
            "description": "A pipeline: each node walks these tasks at its own pace.",
            "required": ["tasks"],
            "additionalProperties": false,
            "properties": {
                "name": {"$ref": "#/$defs/label"},
                "condition": {"$ref": "#/$defs/condition"},
                "depends_on": {"$ref": "#/$defs/depends_on"},
                "for_each": {"$ref": "#/$defs/for_each"},
                "tasks": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "$ref": "#/$defs/leaf",
                        "properties": {
                            "depends_on": false, "target": false, "placement": false, "for_each": false
                        }
                    }
                }
            }
        },
        "leaf": leaf(&Catalogue::builtin())
    })
}

fn leaf(catalogue: &Catalogue) -> Value {
    let backends = catalogue.backends();
    let names: Vec<&str> = backends.iter().map(|backend| backend.name.as_str()).collect();
    let rules: Vec<Value> = backends
        .iter()
        .flat_map(|backend| backend.actions.iter().map(move |action| action_rule(&backend.name, action)))
        .chain(backends.iter().map(|backend| {
            let actions: Vec<&str> = backend.actions.iter().map(|action| action.name.as_str()).collect();
            json!({
                "if": {"required": ["backend"], "properties": {"backend": {"const": backend.name}}},
                "then": {"properties": {"action": {"enum": actions}}}
            })
        }))
        .collect();
    json!({
        "type": "object",
        "description": "One backend's action with its params.",
        "required": ["backend", "action"],
        "additionalProperties": false,
        "allOf": [
            {"not": {"required": ["max_retries", "retry"]}},
            {"not": {"required": ["target", "placement"]}},
            {"allOf": rules}
        ],
        "properties": {
            "name": {"$ref": "#/$defs/label"},
            "backend": {
                "description": "What carries the action out: built in, or declared by the nodes.",
                "anyOf": [{"enum": names}, {"type": "string"}]
            },
            "action": {"type": "string", "description": "What the backend does."},
            "params": {"type": ["object", "null"], "description": "What the action takes."},
            "timeout": {"$ref": "#/$defs/duration", "description": "1s to 24h; 30m when nothing is said."},
            "max_retries": {
                "type": "integer",
                "minimum": 0,
                "maximum": limits::RETRIES,
                "description": "How often it is tried again: after 1s, 2s, 4s, … and at most 30s."
            },
            "retry": {"$ref": "#/$defs/retry"},
            "condition": {"$ref": "#/$defs/condition"},
            "depends_on": {"$ref": "#/$defs/depends_on"},
            "target": {"$ref": "#/$defs/target"},
            "placement": {"$ref": "#/$defs/placement"},
            "delivery": {
                "enum": ["at_least_once", "at_most_once"],
                "description": "Whether an attempt that was lost is sent again."
            },
            "on_disconnect": {
                "enum": ["continue", "stop"],
                "description": "What an agent does with the work when it is cut off for a full lease."
            },
            "outputs": {
                "type": "array",
                "maxItems": limits::OUTPUTS_PER_TASK,
                "uniqueItems": true,
                "items": {"$ref": "#/$defs/word"},
                "description": "Names that it says values for; later tasks use them: {{ steps.NAME.outputs.x }}."
            },
            "for_each": {"$ref": "#/$defs/for_each"},
            "limits": {"$ref": "#/$defs/limits"},
            "cache": {
                "description": "Whether an earlier result with equal inputs will do, and how old it may be.",
                "anyOf": [
                    {"type": "boolean"},
                    {
                        "type": "object",
                        "additionalProperties": false,
                        "properties": {"max_age": {"$ref": "#/$defs/duration"}}
                    }
                ]
            },
            "placement_timeout": {"$ref": "#/$defs/placement_timeout"}
        }
    })
}

fn action_rule(backend: &str, action: &ActionSchema) -> Value {
    let properties: Map<String, Value> =
        action.params.iter().map(|param| (param.name.clone(), param_schema(param))).collect();
    let required: Vec<&str> =
        action.params.iter().filter(|param| param.required).map(|param| param.name.as_str()).collect();
    let mut then = json!({
        "properties": {"params": {"properties": properties, "required": required, "additionalProperties": false}}
    });
    if !required.is_empty() {
        then["required"] = json!(["params"]);
        then["properties"]["params"]["type"] = json!("object");
    }
    json!({
        "if": {
            "required": ["backend", "action"],
            "properties": {"backend": {"const": backend}, "action": {"const": action.name}}
        },
        "then": then
    })
}

fn param_schema(param: &ParamSchema) -> Value {
    // An argument or a variable may be written as a number or a boolean; it arrives as it is written.
    let word = limited(param, json!({"type": ["string", "number", "boolean"]}));
    let list = json!({"type": "array", "items": word});
    let mut schema = match param.kind {
        ParamKind::Text => limited(param, json!({"type": "string"})),
        ParamKind::Integer => limited(param, json!({"type": "integer"})),
        ParamKind::Boolean => json!({"type": "boolean"}),
        ParamKind::Duration => json!({"$ref": "#/$defs/duration"}),
        ParamKind::Texts if param.required => {
            json!({"anyOf": [limited(param, json!({"type": "string"})), {"type": "array", "minItems": 1, "items": word}]})
        }
        ParamKind::Texts => json!({"anyOf": [limited(param, json!({"type": "string"})), list]}),
        ParamKind::Argv => {
            json!({"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "items": word}]})
        }
        ParamKind::Map => match &param.name_pattern {
            None => json!({"type": "object", "additionalProperties": word}),
            Some(names) => {
                json!({"type": "object", "additionalProperties": word, "propertyNames": {"pattern": format!("^(?:{names})$")}})
            }
        },
        ParamKind::Any => json!({}),
    };
    if matches!(
        param.kind,
        ParamKind::Integer | ParamKind::Boolean | ParamKind::Duration | ParamKind::Texts | ParamKind::Map
    ) {
        schema = json!({"anyOf": [schema, {"$ref": "#/$defs/expression"}]});
    }
    if !param.help.is_empty() {
        schema["description"] = json!(param.help);
    }
    schema
}

/// A number says nothing about patterns and lengths, and a text nothing about bounds: each keyword is for its own type.
/// A length is in characters there and in bytes here, so the schema lets some pass that the check refuses.
fn limited(param: &ParamSchema, mut schema: Value) -> Value {
    if let Some(pattern) = &param.pattern {
        schema["pattern"] = json!(format!("^(?:{pattern})$"));
    }
    if !param.choices.is_empty() {
        schema["enum"] = json!(param.choices);
    }
    if let Some(most) = param.max_bytes {
        schema["maxLength"] = json!(most);
    }
    for (keyword, bound) in [("minimum", param.min), ("maximum", param.max)] {
        if let Some(bound) = bound.filter(|_| param.kind == ParamKind::Integer) {
            schema[keyword] = json!(bound);
        }
    }
    // What an expression comes to is held against these once it is known.
    if param.pattern.is_some() || !param.choices.is_empty() {
        return json!({"anyOf": [schema, {"$ref": "#/$defs/expression"}]});
    }
    schema
}

fn target() -> Value {
    json!({
        "description": "Fan out over these nodes: all, group:web, node:web-01, or a selector.",
        "anyOf": [
            {
                "type": "string",
                "minLength": 1,
                "maxLength": limits::SELECTOR_BYTES,
                "examples": ["all", "group:web", "group:web and label.disk = ssd and not node:web-09"]
            },
            {
                "type": "object",
                "required": ["scope"],
                "additionalProperties": false,
                "properties": {"scope": {"const": "all"}}
            },
            {
                "type": "object",
                "required": ["scope", "value"],
                "additionalProperties": false,
                "properties": {"scope": {"enum": ["group", "node"]}, "value": {"type": "string", "minLength": 1}}
            }
        ]
    })
}

fn placement() -> Value {
    json!({
        "type": "object",
        "description": "Run each task once, on one node that fits.",
        "additionalProperties": false,
        "properties": {
            "requires": {
                "type": "object",
                "description": "Capabilities: a text must be equal, a number is the least.",
                "additionalProperties": {"type": ["string", "number", "boolean"], "minLength": 1}
            },
            "labels": {"$ref": "#/$defs/names", "description": "Labels that the node has: `name` or `name=value`."},
            "allow": {"$ref": "#/$defs/names", "description": "Only these nodes, by hostname or id."},
            "forbid": {"$ref": "#/$defs/names", "description": "Never these nodes."},
            "max_per_node": {
                "type": "integer",
                "minimum": 1,
                "maximum": limits::STEPS_PER_RUN,
                "description": "Executions of this run that one node may hold at once."
            },
            "backends": {"$ref": "#/$defs/names", "description": "Backends that the node offers beside the task's own."},
            "prefer": {
                "type": "array",
                "maxItems": limits::PREFERENCES,
                "description": "Which of the fitting nodes are better: the one with the most weight comes first.",
                "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "anyOf": [{"required": ["requires"]}, {"required": ["labels"]}, {"required": ["nodes"]}],
                    "properties": {
                        "requires": {
                            "type": "object",
                            "additionalProperties": {"type": ["string", "number", "boolean"], "minLength": 1}
                        },
                        "labels": {"$ref": "#/$defs/names"},
                        "nodes": {"$ref": "#/$defs/names"},
                        "weight": {"type": "integer", "minimum": 1, "maximum": limits::WEIGHT_MOST, "default": 1}
                    }
                }
            },
            "spread": {
                "description": "Over what the run's executions are spread: nodes, or groups with equal values of a label.",
                "anyOf": [
                    {"const": "node"},
                    {
                        "type": "object",
                        "required": ["label"],
                        "additionalProperties": false,
                        "properties": {"label": {"type": "string", "minLength": 1}}
                    }
                ]
            }
        }
    })
}

fn for_each() -> Value {
    let items = json!({
        "description": "The items: a list, or an expression that comes to one.",
        "anyOf": [
            {"type": "array", "maxItems": limits::ITEMS},
            {"type": "string", "pattern": r"^\s*\{\{[\s\S]*\}\}\s*$", "examples": ["{{ steps.list.outputs.all }}"]}
        ]
    });
    json!({
        "description": "Once for each item: {{ item }}, {{ index }}.",
        "anyOf": [
            items,
            {
                "type": "object",
                "required": ["items"],
                "additionalProperties": false,
                "properties": {
                    "items": items,
                    "max_parallel": {
                        "$ref": "#/$defs/parallel",
                        "description": "Items that may be under way at once."
                    }
                }
            }
        ]
    })
}

fn limits_of_tasks() -> Value {
    json!({
        "type": "object",
        "description": "What it takes one of while it runs, shared with all runs: db: 4 at once, api: 100/1m within a time.",
        "maxProperties": limits::LIMITS_PER_TASK,
        "propertyNames": {"minLength": 1, "maxLength": limits::NAME_BYTES},
        "additionalProperties": {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": limits::LIMIT_MOST},
                {"type": "string", "pattern": LIMIT, "examples": ["100/1m", "5/s"]}
            ]
        }
    })
}

fn rollout() -> Value {
    let part = r"^\s*(\d{1,2}|100)\s*%\s*$";
    let no_part = r"^\s*0{1,2}\s*%\s*$";
    let most = u32::MAX;
    json!({
        "type": "object",
        "description": "In waves of nodes: each walks the whole list before the next begins.",
        "required": ["batch"],
        "additionalProperties": false,
        "properties": {
            "batch": {
                "description": "How many nodes a wave has: 10, 25%, or one after the other: [1, 10%, 50%].",
                "anyOf": [
                    {"$ref": "#/properties/rollout/$defs/wave"},
                    {
                        "type": "array",
                        "minItems": 1,
                        "maxItems": limits::BATCH_AMOUNTS,
                        "items": {"$ref": "#/properties/rollout/$defs/wave"}
                    }
                ]
            },
            "pause": {"$ref": "#/$defs/duration", "description": "Between a wave's end and the next one's beginning."},
            "max_failures": {
                "description": "How many nodes may fail, over the whole roll-out: a number, or a part of all nodes.",
                "default": 0,
                "anyOf": [
                    {"type": "integer", "minimum": 0, "maximum": most},
                    {"type": "string", "pattern": format!(r"{part}|^\s*\d+\s*$")}
                ]
            }
        },
        "$defs": {
            "wave": {
                "anyOf": [
                    {"type": "integer", "minimum": 1, "maximum": most},
                    {"type": "string", "pattern": format!(r"{part}|^\s*\d*[1-9]\d*\s*$"), "not": {"pattern": no_part}}
                ]
            }
        }
    })
}

fn retry() -> Value {
    json!({
        "type": "object",
        "description": "How often a failed task is tried again, and the pauses.",
        "required": ["max"],
        "additionalProperties": false,
        "properties": {
            "max": {"type": "integer", "minimum": 0, "maximum": limits::RETRIES},
            "delay": {"$ref": "#/$defs/duration", "default": "1s"},
            "factor": {"type": "number", "minimum": 1, "maximum": 100, "default": 2},
            "max_delay": {"$ref": "#/$defs/duration", "default": "30s"}
        }
    })
}
