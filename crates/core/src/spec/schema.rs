//! Owns the job file's JSON schema, for editors: the table of fields, the shapes that fields share, and the params of
//! the built-in backends. It describes what `parse` accepts as far as a schema can; only `parse` checks unique names,
//! cycles, and the syntax of selectors and cron expressions.

use serde_json::{Map, Value, json};

use super::fields::{On, object};
use super::life::ActionKind;
use super::parse::APPROVAL;
use crate::backend::{ActionSchema, Catalogue, ParamKind, ParamSchema};
use crate::limits;

const DURATION: &str = r"^\s*(0|(\d+(\.\d+)?(ms|us|µs|s|m|h|d)\s*)+)\s*$";
/// A number of executions at the same time, or a rate. A unit without a number means one of it.
const LIMIT: &str =
    r"^\s*0*[1-9]\d*\s*(/\s*(\d+(\.\d+)?)?(ms|us|µs|s|m|h|d)\s*(\d+(\.\d+)?(ms|us|µs|s|m|h|d)\s*)*)?$";
const PERCENTAGE: &str = r"^\s*(\d{1,2}|100)\s*%\s*$";
const ZERO_PERCENT: &str = r"^\s*0{1,2}\s*%\s*$";
/// A name that expressions can use.
const WORD: &str = "^[A-Za-z_][A-Za-z0-9_]*$";
/// A string that contains an expression may stand for a value of any type.
const EXPRESSION: &str = r"\{\{";
const ONE_EXPRESSION: &str = r"^\s*\{\{[\s\S]*\}\}\s*$";
const DATE: &str = r"^(\d{4}-)?\d{2}-\d{2}$";
const WEEKDAY: &str =
    "^([Ss][Uu][Nn]|[Mm][Oo][Nn]|[Tt][Uu][Ee]|[Ww][Ee][Dd]|[Tt][Hh][Uu]|[Ff][Rr][Ii]|[Ss][Aa][Tt])[A-Za-z]*$";
/// Only `parse` checks that there is a host.
const URL: &str = r"^[Hh][Tt][Tt][Pp][Ss]?://[^\s]+$";
const IDENTIFIER: &str = "^[A-Za-z0-9][A-Za-z0-9._-]*$";

/// Returns the job file's JSON schema (draft 2020-12), with the params of the built-in backends.
pub fn schema() -> Value {
    let mut schema = object(On::Job, &["tasks"]);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Downbeat job file");
    schema["allOf"] = json!([
        {"not": {"required": ["target", "placement"]}},
        {"not": {"required": ["rollout", "strategy"]}}
    ]);
    schema["dependentRequired"] = json!({"rollout": ["target"]});
    schema["$defs"] = shapes();
    schema
}

/// Returns the shapes that fields refer to.
fn shapes() -> Value {
    let mut shapes = json!({
        "identifier": {"type": "string", "pattern": IDENTIFIER, "maxLength": limits::NAME_BYTES},
        "cluster_name": {"type": "string", "minLength": 1, "maxLength": limits::CLUSTER_NAME_BYTES},
        "word": {"type": "string", "pattern": WORD, "maxLength": limits::NAME_BYTES},
        "expression": {"type": "string", "pattern": EXPRESSION, "examples": ["{{ params.version }}"]},
        "label": {"type": "string", "minLength": 1, "maxLength": limits::NAME_BYTES, "pattern": r"^\S(.*\S)?$"},
        "duration": {"type": "string", "pattern": DURATION, "examples": ["500ms", "1.5s", "30m", "1h30m"]},
        "names": {"type": "array", "items": {"type": "string", "minLength": 1}},
        "parallel": {"type": "integer", "minimum": 1, "maximum": limits::INSTANCES_PER_RUN},
        "requires": {
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean"], "minLength": 1}
        },
        "limits": {
            "type": "object",
            "maxProperties": limits::LIMITS_PER_TASK,
            "propertyNames": {"minLength": 1, "maxLength": limits::NAME_BYTES},
            "additionalProperties": {
                "anyOf": [
                    {"type": "integer", "minimum": 1, "maximum": limits::LIMIT_MOST},
                    {"type": "string", "pattern": LIMIT, "examples": ["100/1m", "5/s"]}
                ]
            }
        },
        "amount": {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": u32::MAX},
                {"type": "string", "pattern": format!(r"{PERCENTAGE}|^\s*\d+\s*$")}
            ]
        },
        "wave": {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": u32::MAX},
                {
                    "type": "string",
                    "pattern": format!(r"{PERCENTAGE}|^\s*\d*[1-9]\d*\s*$"),
                    "not": {"pattern": ZERO_PERCENT}
                }
            ]
        },
        "items": {
            "anyOf": [
                {"type": "array", "maxItems": limits::ITEMS},
                {"type": "string", "pattern": ONE_EXPRESSION}
            ]
        },
        "target": {
            "anyOf": [{"type": "string", "minLength": 1, "maxLength": limits::SELECTOR_BYTES}, target()]
        },
        "placement": object(On::Placement, &[]),
        "preference": preference(),
        "spread": {"anyOf": [{"const": "node"}, object(On::Spread, &["label"])]},
        "rollout": object(On::Rollout, &["batch"]),
        "approve": object(On::Approve, &[]),
        "retry": object(On::Retry, &["max"]),
        "for_each": {"anyOf": [{"$ref": "#/$defs/items"}, object(On::ForEach, &["items"])]},
        "cache": {"anyOf": [{"type": "boolean"}, object(On::Cache, &[])]},
        "branch": object(On::Branch, &["tasks"]),
        "task": {"if": {"required": ["approve"]}, "then": approval(), "else": task(On::Task)},
        "leaf": task(On::Leaf),
        "actions": actions(&Catalogue::builtin())
    });
    if let (Value::Object(shapes), Value::Object(more)) = (&mut shapes, shapes_of_stored_jobs()) {
        shapes.extend(more);
    }
    shapes
}

/// Returns the shapes of what starts a job by itself, and of what goes with its runs.
fn shapes_of_stored_jobs() -> Value {
    json!({
        "cron": {"type": "string", "minLength": 1, "maxLength": limits::CRON_BYTES},
        "schedule": {"anyOf": [{"$ref": "#/$defs/cron"}, schedule()]},
        "catch_up": {"anyOf": [{"$ref": "#/$defs/duration"}, {"const": "none"}, catch_up()]},
        "exclude": object(On::Exclude, &[]),
        "date": {"type": "string", "pattern": DATE, "examples": ["2026-12-24", "01-01"]},
        "url": {"type": "string", "pattern": URL, "maxLength": limits::URL_BYTES},
        "constraints": object(On::Constraints, &[]),
        "hook": object(On::Hook, &["url"]),
        "recipients": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "minItems": 1, "maxItems": limits::EMAIL_RECIPIENTS, "items": {"type": "string"}}
            ]
        },
        "message_body": {"type": ["object", "array"]},
        "life_actions": one_or_list(&action_or_message(&OWN_ACTIONS)),
        "calls": one_or_list(&action_or_message(&[ActionKind::TriggerJob])),
        "weekday": {"type": "string", "pattern": WEEKDAY},
        "trigger": trigger(),
        "http_trigger": http_trigger(),
        "job_trigger": object(On::JobTrigger, &["name"]),
        "event_trigger": event_trigger(),
        "given": {"type": ["object", "null"], "propertyNames": {"$ref": "#/$defs/word"}}
    })
}

fn target() -> Value {
    let mut target = object(On::Target, &["scope"]);
    target["if"] = json!({"properties": {"scope": {"const": "all"}}});
    target["then"] = json!({"properties": {"value": false}});
    target["else"] = json!({"required": ["value"]});
    target
}

fn schedule() -> Value {
    let mut schedule = object(On::Schedule, &[]);
    schedule["oneOf"] = json!([{"required": ["cron"]}, {"required": ["every"]}]);
    schedule
}

/// Returns the schema of an action, or of a list of actions.
fn one_or_list(action: &Value) -> Value {
    json!({"anyOf": [action, {"type": "array", "minItems": 1, "maxItems": limits::ACTIONS, "items": action}]})
}

/// The actions that send no message.
const OWN_ACTIONS: [ActionKind; 5] =
    [ActionKind::Skip, ActionKind::RetryLater, ActionKind::KillOld, ActionKind::Wait, ActionKind::TriggerJob];

/// Returns the schema of a message, or of an action of one of these kinds.
fn action_or_message(kinds: &[ActionKind]) -> Value {
    let messages = [
        (ActionKind::Webhook, On::Webhook, ["action", "url"]),
        (ActionKind::Slack, On::Slack, ["action", "url"]),
        (ActionKind::Email, On::Email, ["action", "to"]),
    ];
    messages.into_iter().fold(life_action(kinds), |other, (kind, on, required)| {
        let mut message = object(on, &required);
        message["properties"]["action"] = json!({"const": kind.as_str()});
        let is_kind = json!({"properties": {"action": {"const": kind.as_str()}}, "required": ["action"]});
        json!({"if": is_kind, "then": message, "else": other})
    })
}

/// Returns the schema of an action of one of these kinds.
fn life_action(kinds: &[ActionKind]) -> Value {
    let mut action = object(On::Action, &["action"]);
    action["properties"]["action"]["enum"] =
        json!(kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>());
    let fields = [("delay", ActionKind::RetryLater), ("job", ActionKind::TriggerJob)];
    let rules = fields.map(|(field, kind)| {
        let mut not = json!({"properties": {field: false}});
        if kind == ActionKind::TriggerJob {
            not["properties"]["params"] = json!(false);
        }
        let is_kind = json!({"properties": {"action": {"const": kind.as_str()}}});
        json!({"if": is_kind, "then": {"required": [field]}, "else": not})
    });
    action["allOf"] = json!(rules);
    action
}

fn trigger() -> Value {
    let mut trigger = object(On::Trigger, &[]);
    trigger["minProperties"] = json!(1);
    trigger["maxProperties"] = json!(1);
    trigger
}

fn http_trigger() -> Value {
    let mut trigger = object(On::HttpTrigger, &["path", "auth"]);
    trigger["if"] = json!({"properties": {"auth": {"const": "none"}}});
    trigger["then"] = json!({"properties": {"secret_env": false, "secret_file": false}});
    trigger["else"] = json!({"oneOf": [{"required": ["secret_env"]}, {"required": ["secret_file"]}]});
    trigger
}

fn event_trigger() -> Value {
    let mut trigger = object(On::EventTrigger, &["kind"]);
    trigger["if"] = json!({"properties": {"kind": {"enum": ["node_registered", "node_offline"]}}});
    trigger["then"] = json!({"properties": {"job": false}});
    trigger["else"] = json!({"properties": {"group": false}});
    trigger
}

fn catch_up() -> Value {
    let mut catch_up = object(On::CatchUp, &[]);
    catch_up["if"] = json!({"required": ["policy"], "properties": {"policy": {"const": "none"}}});
    catch_up["then"] = json!({"properties": {"window": false}});
    catch_up["else"] = json!({"required": ["window"]});
    catch_up
}

fn preference() -> Value {
    let mut preference = object(On::Preference, &[]);
    preference["anyOf"] =
        json!([{"required": ["requires"]}, {"required": ["labels"]}, {"required": ["nodes"]}]);
    preference
}

fn task(on: On) -> Value {
    let mut task = object(on, &["backend", "action"]);
    task["allOf"] = json!([
        {"not": {"required": ["max_retries", "retry"]}},
        {"not": {"required": ["target", "placement"]}},
        {"$ref": "#/$defs/actions"}
    ]);
    task
}

/// Returns the schema of a task that a person decides.
fn approval() -> Value {
    let mut task = object(On::Task, &["approve"]);
    if let Some(fields) = task["properties"].as_object_mut() {
        fields.retain(|name, _| APPROVAL.contains(&name.as_str()));
    }
    task
}

/// Returns the actions of each backend, and the params of each action.
fn actions(catalogue: &Catalogue) -> Value {
    let backends = catalogue.backends();
    let params = backends
        .iter()
        .flat_map(|backend| backend.actions.iter().map(move |action| action_rule(&backend.name, action)));
    let actions = backends.iter().map(|backend| {
        let actions: Vec<&str> = backend.actions.iter().map(|action| action.name.as_str()).collect();
        json!({
            "if": {"required": ["backend"], "properties": {"backend": {"const": backend.name}}},
            "then": {"properties": {"action": {"enum": actions}}}
        })
    });
    let rules: Vec<Value> = params.chain(actions).collect();
    json!({"allOf": rules})
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
    // An argument or a variable may be written as a number or a boolean; the program receives it as written.
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

/// Adds the param's bounds. JSON schema counts characters where the check counts bytes, so the schema accepts some texts
/// that the check refuses.
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
    // The value of an expression is checked against these when it is known.
    if param.pattern.is_some() || !param.choices.is_empty() {
        return json!({"anyOf": [schema, {"$ref": "#/$defs/expression"}]});
    }
    schema
}
