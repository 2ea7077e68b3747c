//! The OpenAPI document: golden, complete, and true.

use std::collections::BTreeSet;

use downbeat_api::request;
use downbeat_core::Change;
use downbeat_testbed::in_process::{Setup, noop, send};
use downbeat_testbed::{DEADLINE, within};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

#[test]
fn the_document_is_the_one_that_was_agreed_on() {
    let mut document = downbeat_server::http::openapi();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    document["info"]["version"] = Value::from("[version]");
    // The job file's schema has golden files of its own.
    document["components"]["schemas"]["JobFile"] = Value::from("[schema]");
    insta::assert_json_snapshot!(document);
}

#[test]
fn every_kind_of_event_is_described_with_its_data() {
    let document = downbeat_server::http::openapi();
    let kinds = document["components"]["schemas"]["EventBody"]["oneOf"].as_array().unwrap();
    for kind in Change::KINDS {
        let of_kind = |schema: &&Value| schema["properties"]["kind"]["enum"] == json!([kind]);
        let described = kinds.iter().find(of_kind).unwrap_or_else(|| panic!("{kind} has no schema"));
        assert_ne!(described["properties"]["data"], Value::Null, "{kind}");
    }
}

#[test]
fn every_request_of_the_api_crate_is_an_operation() {
    let document = downbeat_server::http::openapi();
    let root = format!("/{}/", request::ROOT.join("/"));
    let operations: BTreeSet<String> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(path, _)| path.starts_with(&root))
        .flat_map(|(path, item)| {
            item.as_object().unwrap().keys().map(move |method| format!("{method} {path}"))
        })
        .collect();
    let known = request::ALL.iter().map(|(method, path)| {
        let method = format!("{method:?}").to_lowercase();
        format!("{method} {root}{path}")
    });
    assert_eq!(known.collect::<BTreeSet<_>>(), operations);
}

#[test]
fn every_operation_has_an_id_of_its_own() {
    let document = downbeat_server::http::openapi();
    let mut ids: Vec<&str> = document["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|item| item.as_object().unwrap().values())
        .map(|operation| operation["operationId"].as_str().unwrap())
        .collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all);
}

#[test]
fn every_reference_in_the_document_leads_somewhere() {
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let document = downbeat_server::http::openapi();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 20);
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[tokio::test]
async fn every_route_in_the_document_answers() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let run = setup.submit(&noop()).await;
    // A node that can be deleted.
    setup.agent("web-02", &[]).await;
    let work = agent.take().await;
    agent.finish(&work, 0).await;
    setup.ended(&run).await;
    // A cluster and a task that can be deleted, and a task that stays: no node carries it out.
    setup.cluster("web").await;
    let task = |name: &str| json!({"name": name, "command": "true", "selector": "group:nobody"});
    let kept = setup.post("/clusters/default/tasks", &task("kept")).await.body["id"].clone();
    let gone = setup.post("/clusters/default/tasks", &task("gone")).await.body["id"].clone();
    let job = |name: &str| json!({"name": name, "tasks": [{"backend": "test", "action": "noop"}]});
    for name in ["kept", "gone"] {
        assert_eq!(setup.post("/jobs", &job(name)).await.status, StatusCode::CREATED);
    }
    let hourly = json!({"name": "hourly", "schedule": "@hourly", "tasks": [{"approve": {}}]});
    assert_eq!(setup.post("/jobs", &hourly).await.status, StatusCode::CREATED);
    let range = json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T12:00:00Z"});
    let backfill = setup.post("/jobs/hourly/backfill", &range).await.body["id"].as_str().unwrap().to_owned();
    // A run with a message that cannot be delivered.
    let mut loud = job("loud");
    loud["on_success"] = json!({"action": "webhook", "url": "http://127.0.0.1:9/"});
    assert_eq!(setup.post("/jobs", &loud).await.status, StatusCode::CREATED);
    assert_eq!(setup.post("/jobs/loud/runs", &json!({})).await.status, StatusCode::CREATED);
    let work_of_loud = agent.take().await;
    agent.finish(&work_of_loud, 0).await;
    let queued = || async {
        let listed = setup.ok("/deliveries").await;
        listed["data"][0]["id"].as_str().map(str::to_owned)
    };
    let delivery = within(DEADLINE, queued).await.expect("the message is queued");
    let mut hook = job("hook");
    hook["triggers"] = json!([{"http": {"path": "hook", "auth": "none"}}]);
    assert_eq!(setup.post("/jobs", &hook).await.status, StatusCode::CREATED);
    let command = json!({"command": "true"});
    let debug = setup.post("/nodes/web-01/debug", &command).await.body["id"].as_str().unwrap().to_owned();
    let document = setup.ok("/openapi.json").await;
    assert_eq!(document["openapi"].as_str().map(|version| &version[..3]), Some("3.1"));
    let mut answered = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let id = match path {
            path if path.contains("/runs/") => run.clone(),
            path if path.contains("/executions/") => work.execution.to_string(),
            path if path.contains("/clusters/") => "default".to_owned(),
            path if path.contains("/tasks/") => kept.as_str().unwrap().to_owned(),
            path if path.contains("/debug/") => debug.clone(),
            path if path.ends_with("/backfill") => "hourly".to_owned(),
            path if path.contains("/jobs/") => "kept".to_owned(),
            path if path.contains("/backfills/") => backfill.clone(),
            path if path.contains("/deliveries/") => delivery.clone(),
            path if path.contains("/hooks/") => "hook".to_owned(),
            _ => "web-01".to_owned(),
        };
        // A stream without an end, which has its own tests.
        if path == "/api/v1/live" {
            continue;
        }
        for method in item.as_object().unwrap().keys() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let mut url = match method {
                Method::DELETE if path.contains("/clusters/") => path.replace("{id}", "web"),
                Method::DELETE if path.contains("/tasks/") => path.replace("{id}", gone.as_str().unwrap()),
                Method::DELETE if path.contains("/jobs/") => path.replace("{id}", "gone"),
                Method::DELETE => format!("{}?force=1", path.replace("{id}", "web-02")),
                _ => path.replace("{id}", &id),
            };
            if url == "/api/v1/events" || url == "/api/v1/replication" {
                url.push_str("?follow=0");
            }
            if path == "/api/v1/jobs/{id}/diff" {
                url.push_str("?from=1&to=1");
            }
            if url == "/api/v1/node-counts" {
                url.push_str("?by=group");
            }
            let url = format!("http://{}{url}", setup.server.http_addr());
            let mut request = setup.http.request(method.clone(), url);
            if method != Method::GET
                && method != Method::DELETE
                && (!path.contains("/runs/{id}") || path.ends_with("/approve"))
            {
                let body = match path.as_str() {
                    "/api/v1/runs/{id}/approve" => json!({"step": "0"}),
                    "/api/v1/clusters" => json!({"name": "new"}),
                    "/api/v1/clusters/{id}" => json!({"description": "all nodes"}),
                    "/api/v1/clusters/{id}/tasks" if method == Method::PUT => {
                        json!({"tasks": [task("kept"), task("gone")]})
                    }
                    "/api/v1/clusters/{id}/tasks" => task("added"),
                    "/api/v1/clusters/{id}/tasks/reorder" => json!({"task_ids": [gone, kept]}),
                    "/api/v1/tasks/{id}" => json!({"blocking": true}),
                    "/api/v1/tasks/{id}/rerun" => json!({"all": true}),
                    "/api/v1/jobs" => job("new"),
                    "/api/v1/jobs/{id}" => job("kept"),
                    "/api/v1/jobs/{id}/runs" => json!({"params": {}}),
                    "/api/v1/jobs/{id}/rollback" => json!({"version": 1}),
                    "/api/v1/jobs/{id}/backfill" => range.clone(),
                    "/api/v1/nodes/{id}/debug" => command.clone(),
                    "/api/v1/clusters/{id}/debug" => json!({"command": "true", "selector": "all"}),
                    "/api/v1/runs/cancel" | "/api/v1/runs/retry" => json!({"ids": []}),
                    "/api/v1/nodes/drain" | "/api/v1/nodes/undrain" => json!({"nodes": []}),
                    _ => noop(),
                };
                request = request.json(&body);
            }
            let answer = send(request).await;
            // The run has succeeded: no such request is possible.
            let of_open_runs = ["{id}/approve", "{id}/cancel", "{id}/pause", "{id}/resume", "{id}/retry"];
            let is_of_run = path.contains("/runs/") && of_open_runs.iter().any(|end| path.ends_with(end));
            let wanted =
                if is_of_run { answer.status == StatusCode::CONFLICT } else { answer.status.is_success() };
            assert!(wanted, "{method} {path}: {} {}", answer.status, answer.body);
            let declared = &item[method.as_str().to_lowercase()]["responses"];
            let status = answer.status.as_u16().to_string();
            assert!(
                declared.get(&status).is_some() || !answer.status.is_success(),
                "{method} {path}: {status}"
            );
            answered += 1;
        }
    }
    assert!(answered >= 29, "{answered}");
}

/// The values of a parameter that the document allows and forbids.
struct Values {
    allowed: Vec<String>,
    forbidden: Vec<String>,
}

impl Values {
    fn of(parameter: &Value) -> Self {
        let (name, schema) = (parameter["name"].as_str().unwrap(), &parameter["schema"]);
        if let Some(words) = schema["enum"].as_array() {
            let allowed = words.iter().map(|word| word.as_str().unwrap().to_owned()).collect();
            return Self { allowed, forbidden: vec!["maybe".to_owned(), "TRUE".to_owned()] };
        }
        if schema["type"] != "integer" {
            return Self { allowed: Vec::new(), forbidden: Vec::new() };
        }
        let least = schema["minimum"].as_i64().unwrap_or_else(|| panic!("{name} has no minimum"));
        let by_format = match schema["format"].as_str() {
            Some("uint32") => u32::MAX.into(),
            Some("uint64") => u64::MAX,
            other => panic!("{name} has the format {other:?}"),
        };
        let most = schema["maximum"].as_u64().unwrap_or(by_format);
        let mut allowed = vec![least.to_string()];
        // Whether a number of an event or of a version exists depends on the store.
        if name != "since" && name != "cursor" {
            allowed.push(most.to_string());
        }
        if ["version", "from", "to"].contains(&name) {
            allowed.clear();
        }
        let above = (u128::from(most) + 1).to_string();
        Self { allowed, forbidden: vec![(least - 1).to_string(), above, "x".to_owned()] }
    }
}

#[tokio::test]
async fn every_parameter_takes_the_values_that_the_document_allows_and_no_others() {
    let setup = Setup::new().await;
    let mut agent = setup.agent("web-01", &[]).await;
    let run = setup.submit(&noop()).await;
    let work = agent.take().await;
    agent.finish(&work, 0).await;
    setup.ended(&run).await;
    let task = json!({"name": "task", "command": "true", "selector": "group:nobody"});
    let task = setup.post("/clusters/default/tasks", &task).await.body["id"].as_str().unwrap().to_owned();
    let debug = setup.post("/nodes/web-01/debug", &json!({"command": "true"})).await.body["id"].clone();
    let job = json!({"name": "kept", "tasks": [{"backend": "test", "action": "noop"}]});
    assert_eq!(setup.post("/jobs", &job).await.status, StatusCode::CREATED);
    let document = downbeat_server::http::openapi();
    let mut checked = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let id = match path {
            path if path.contains("/runs/") => run.clone(),
            path if path.contains("/executions/") => work.execution.to_string(),
            path if path.contains("/clusters/") => "default".to_owned(),
            path if path.contains("/tasks/") => task.clone(),
            path if path.contains("/debug/") => debug.as_str().unwrap().to_owned(),
            path if path.contains("/jobs/") => "kept".to_owned(),
            _ => "web-01".to_owned(),
        };
        let url = format!("http://{}{}", setup.server.http_addr(), path.replace("{id}", &id));
        for parameter in item["get"]["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap();
            if parameter["in"] != "query" {
                continue;
            }
            let list = path == "/api/v1/events" && name != "follow";
            let refused = async |value: &str| {
                let mut query = vec![(name, value)];
                if list {
                    query.push(("follow", "0"));
                }
                if path == "/api/v1/node-counts" && name != "by" {
                    query.push(("by", "group"));
                }
                let response = setup.http.get(&url).query(&query).send().await.unwrap();
                if response.status() != StatusCode::BAD_REQUEST {
                    // The body may be an endless stream.
                    assert!(response.status().is_success(), "{path}?{name}={value}: {}", response.status());
                    return false;
                }
                let problem: Value = response.json().await.unwrap();
                let detail = problem["detail"].as_str().unwrap();
                assert_eq!(problem["code"], "bad_query", "{path}?{name}={value}: {detail}");
                assert!(detail.starts_with(&format!("the query is wrong: {name}: ")), "{path}: {detail}");
                true
            };
            let Values { allowed, forbidden } = Values::of(parameter);
            for value in &allowed {
                assert!(!refused(value).await, "{path}?{name}={value} is allowed by the document");
            }
            for value in &forbidden {
                assert!(refused(value).await, "{path}?{name}={value} is forbidden by the document");
            }
            if !forbidden.is_empty() {
                checked.insert(name);
            }
        }
    }
    for name in ["limit", "offset", "since", "step", "item", "follow", "sort"] {
        assert!(checked.contains(name), "{name} is in no request");
    }
}

#[test]
fn every_problem_has_a_body_and_no_parameter_is_null() {
    let document = downbeat_server::http::openapi();
    for (path, item) in document["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            for (status, response) in operation["responses"].as_object().unwrap() {
                let is_problem = status.starts_with(['4', '5']) || status == "default";
                let schema = &response["content"]["application/problem+json"]["schema"]["$ref"];
                assert!(!is_problem || schema == "#/components/schemas/Problem", "{path} {status}");
            }
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                assert!(parameter["schema"]["type"].is_string(), "{path}: {parameter}");
            }
        }
    }
}

#[test]
fn streams_are_described_with_all_that_they_send() {
    let document = downbeat_server::http::openapi();
    let streams = [
        ("/api/v1/events", vec!["Event", "Gap", "End"]),
        ("/api/v1/runs/{id}/events", vec!["Event", "Gap", "End"]),
        ("/api/v1/runs/{id}/output", vec!["RunChunk", "End"]),
        ("/api/v1/executions/{id}/output", vec!["Chunk", "End"]),
    ];
    for (path, names) in streams {
        let content = &document["paths"][path]["get"]["responses"]["200"]["content"]["text/event-stream"];
        let reference = content["schema"]["$ref"].as_str().unwrap();
        let schema = document.pointer(&reference[1..]).unwrap();
        let sent: Vec<String> = schema["oneOf"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["$ref"].as_str().unwrap().rsplit('/').next().unwrap().to_owned())
            .collect();
        assert_eq!(sent, names, "{path}");
    }
}

#[tokio::test]
async fn the_page_stands_on_its_own() {
    let setup = Setup::new().await;
    let page = setup.get("/docs").await;
    assert_eq!(page.content_type, "text/html; charset=utf-8");
    let html = page.body.as_str().unwrap();
    assert!(html.contains("openapi.json"));
    assert!(!html.contains("http://") && !html.contains("https://"), "no asset comes from elsewhere");
}
