//! The OpenAPI document: golden, complete, and true.

use std::collections::BTreeSet;

use downbeat_api::request;
use downbeat_core::Change;
use downbeat_testbed::in_process::{Setup, noop, send};
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
    let document = setup.ok("/openapi.json").await;
    assert_eq!(document["openapi"].as_str().map(|version| &version[..3]), Some("3.1"));
    let mut answered = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let id = match path {
            path if path.contains("/runs/") => run.clone(),
            path if path.contains("/executions/") => work.execution.to_string(),
            path if path.contains("/clusters/") => "default".to_owned(),
            _ => "web-01".to_owned(),
        };
        for method in item.as_object().unwrap().keys() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let mut url = match method {
                Method::DELETE => format!("{}?force=1", path.replace("{id}", "web-02")),
                _ => path.replace("{id}", &id),
            };
            if url == "/api/v1/events" || url == "/api/v1/replication" {
                url.push_str("?follow=0");
            }
            let url = format!("http://{}{url}", setup.server.http_addr());
            let mut request = setup.http.request(method.clone(), url);
            if method == Method::POST && !path.contains("/runs/{id}") {
                let body = match path.as_str() {
                    "/api/v1/runs/cancel" | "/api/v1/runs/retry" => json!({"ids": []}),
                    "/api/v1/nodes/drain" | "/api/v1/nodes/undrain" => json!({"nodes": []}),
                    _ => noop(),
                };
                request = request.json(&body);
            }
            let answer = send(request).await;
            // The run has succeeded: no such request is possible.
            let of_open_runs = ["{id}/cancel", "{id}/pause", "{id}/resume", "{id}/retry"];
            let wanted = if of_open_runs.iter().any(|end| path.ends_with(end)) {
                answer.status == StatusCode::CONFLICT
            } else {
                answer.status.is_success()
            };
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

#[tokio::test]
async fn the_page_stands_on_its_own() {
    let setup = Setup::new().await;
    let page = setup.get("/docs").await;
    assert_eq!(page.content_type, "text/html; charset=utf-8");
    let html = page.body.as_str().unwrap();
    assert!(html.contains("openapi.json"));
    assert!(!html.contains("http://") && !html.contains("https://"), "no asset comes from elsewhere");
}
