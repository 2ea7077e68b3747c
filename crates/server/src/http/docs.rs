//! Owns the description of the API: OpenAPI 3.1 generated from the code, and a page that renders it.

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::get;
use downbeat_api::{Chunk, End, Event, Frame, Gap, Problem, RunChunk};
use downbeat_core::{limits, spec};
use serde_json::{Value, json};
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder, Schema};
use utoipa::{OpenApi as _, PartialSchema, ToSchema};

use super::idempotency::KEY_BYTES;

const PAGE: &str = include_str!("docs.html");

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Downbeat",
        description = "Runs jobs on many nodes. Errors are `application/problem+json`; times are RFC 3339 in UTC; \
                       durations are text such as `1.5s`; lists return `data` and `pagination`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(Problem)),
    tags(
        (name = "runs", description = "One execution of a job"),
        (name = "executions", description = "One attempt of one step on one node"),
        (name = "nodes", description = "Machines with an agent"),
        (name = "clusters", description = "Named sets of nodes, each with its own standing tasks and runs"),
        (name = "jobs", description = "Stored jobs: named, with versions, started by their schedules"),
        (name = "tasks", description = "Standing tasks: every node of a cluster carries them out once, in order"),
        (name = "plans", description = "Dry runs; nothing is started"),
        (name = "deliveries", description = "Webhooks and notifications about runs"),
        (name = "events", description = "Recorded changes"),
        (name = "system", description = "The servers themselves"),
    ),
)]
struct Base;

/// Returns the parts of the document that do not depend on the routes.
pub(super) fn base() -> OpenApi {
    Base::openapi()
}

/// Returns the document as it is served: every operation may return a problem, parameters have their bounds, and a
/// definition is a job file.
pub(super) fn whole(mut document: OpenApi) -> Value {
    for item in document.paths.paths.values_mut() {
        for operation in item.get.iter_mut() {
            add_problems(operation, &OF_ALL);
        }
        for operation in changing(item) {
            add_problems(operation, &OF_ALL);
            add_problems(operation, &OF_CHANGING);
        }
    }
    let mut document = serde_json::to_value(&document).expect("an OpenAPI document is plain data");
    let items = document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
    for operation in items.flat_map(|item| item.as_object_mut()).flat_map(|item| item.values_mut()) {
        let parameters = operation["parameters"].as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
        let is_list = parameters.iter().any(|parameter| parameter["name"] == "limit");
        for parameter in parameters {
            bound_parameter(parameter, is_list);
        }
        for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
            if status.starts_with(['4', '5']) && response["content"].is_null() {
                let problem = json!({"schema": {"$ref": "#/components/schemas/Problem"}});
                response["content"] = json!({"application/problem+json": problem});
            }
        }
    }
    let schemas = &mut document["components"]["schemas"];
    // Removes the kind for events that this server does not know.
    if let Some(kinds) = schemas["EventBody"]["oneOf"].as_array_mut() {
        kinds.retain(|kind| kind["properties"]["kind"]["enum"] != json!(["unknown"]));
    }
    document["components"]["schemas"]["JobFile"] = job_file();
    document["components"]["schemas"]["JobRequest"] = job_request();
    document
}

/// Statuses of problems with their descriptions; `default` stands for all other statuses.
type Problems = [(&'static str, &'static str)];

const OF_ALL: [(&str, &str); 2] = [
    ("421", "The server is not known by the name in `Host`; see the setting `allowed_hosts`"),
    ("default", "Why the request failed"),
];

const OF_CHANGING: [(&str, &str); 2] = [
    ("403", "A web page of another site sent it (`Origin`, `Sec-Fetch-Site`)"),
    ("415", "Its body has no content type, or one other than JSON and YAML"),
];

fn add_problems(operation: &mut Operation, problems: &Problems) {
    for (status, description) in problems {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        let problem = ResponseBuilder::new()
            .description(*description)
            .content("application/problem+json", content)
            .build();
        operation.responses.responses.entry((*status).to_owned()).or_insert_with(|| problem.into());
    }
}

/// Describes which values of a parameter are accepted, where its type alone says less.
fn bound_parameter(parameter: &mut Value, is_list: bool) {
    let name = parameter["name"].as_str().unwrap_or_default().to_owned();
    let schema = &mut parameter["schema"];
    // A parameter may be absent, but not null.
    if let Some([kind, null]) = schema["type"].as_array().map(Vec::as_slice)
        && null == "null"
    {
        schema["type"] = kind.clone();
    }
    // Names of the OpenAPI Format Registry.
    match schema["format"].as_str() {
        Some("int32") => schema["format"] = json!("uint32"),
        Some("int64") => schema["format"] = json!("uint64"),
        _ => {}
    }
    match name.as_str() {
        // One that is not the limit of a page declares its own bounds.
        "limit" if schema["maximum"].is_null() => {
            schema["minimum"] = json!(1);
            schema["maximum"] = json!(limits::PAGE_MOST);
            schema["default"] = json!(limits::PAGE_DEFAULT);
        }
        "offset" if is_list => schema["maximum"] = json!(limits::OFFSET_MOST),
        "Idempotency-Key" => {
            schema["minLength"] = json!(1);
            schema["maxLength"] = json!(KEY_BYTES);
        }
        _ => {}
    }
}

fn changing(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.post, &mut item.put, &mut item.patch, &mut item.delete].into_iter().flatten()
}

/// Returns the schema of the job file, with its references adapted to its place in this document.
fn job_file() -> Value {
    fn rebase(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(reference) if name == "$ref" => {
                            *reference = reference.replacen("#/", "#/components/schemas/JobFile/", 1);
                        }
                        value => rebase(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(rebase),
            _ => {}
        }
    }
    let mut schema = spec::schema();
    rebase(&mut schema);
    schema
}

/// Returns the schema of a job file, alone or with params.
fn job_request() -> Value {
    let file = json!({"$ref": "#/components/schemas/JobFile"});
    json!({
        "oneOf": [
            file,
            {
                "type": "object",
                "required": ["definition"],
                "properties": {
                    "definition": {
                        "description": "A job file, or its text as YAML or JSON.",
                        "oneOf": [file, {"type": "string"}],
                    },
                    "params": {"type": "object", "description": "Values for the job's params, by name."},
                    "no_cache": {"type": "boolean", "description": "If true, the run does not use cached results."},
                },
                "additionalProperties": false,
            },
        ],
    })
}

/// Serves `/api/v1/openapi.json` and `/api/v1/docs`.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(document: &Value) -> Router<S> {
    let json = Bytes::from(document.to_string());
    let document = move || async move { ([(header::CONTENT_TYPE, "application/json")], json) };
    let page = || async { ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], PAGE) };
    Router::new().route("/api/v1/openapi.json", get(document)).route("/api/v1/docs", get(page))
}

/// Describes what a stream of events sends: events under the names of their kinds, `gap`, and `end` if it follows a run.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) enum StreamedEvent {
    Event(Box<Event>),
    Gap(Gap),
    End(End),
}

/// Describes what the live stream sends: `frame`, and `gap` if the client has to read everything again.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) enum StreamedFrame {
    Frame(Frame),
    Gap(Gap),
}

/// Describes what a stream of an execution's output sends: `output`, then `end`.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) enum StreamedChunk {
    Output(Chunk),
    End(End),
}

/// Describes what a stream of a run's output sends: `output`, then `end`.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) enum StreamedRunChunk {
    Output(RunChunk),
    End(End),
}

/// Refers to the schema `JobRequest` in the description of a request.
#[derive(Debug)]
pub(super) struct JobRequest;

impl PartialSchema for JobRequest {
    fn schema() -> RefOr<Schema> {
        Ref::from_schema_name("JobRequest").into()
    }
}

impl ToSchema for JobRequest {}
