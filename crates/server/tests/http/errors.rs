//! Every class of error is a problem document that says what is wrong.

use downbeat_testbed::in_process::{Answer, Setup, noop, send};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

fn is_problem(answer: &Answer, status: StatusCode, code: &str) {
    assert_eq!(answer.status, status, "{}", answer.body);
    assert_eq!(answer.content_type, "application/problem+json");
    assert_eq!(answer.body["status"], status.as_u16());
    assert_eq!(answer.body["code"], code, "{}", answer.body);
    assert_eq!(answer.body["title"], status.canonical_reason().unwrap());
    assert!(answer.body["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
    assert!(answer.body["errors"].is_array() && answer.body["type"].is_string());
}

#[tokio::test]
async fn unknown_ids_are_not_found() {
    let setup = Setup::new().await;
    let uuid = "01890a5d-ac96-774b-bcce-b302099a8057";
    for path in [
        "/runs/nope",
        "/runs/nope/executions",
        "/runs/nope/events",
        "/runs/nope/events?follow=1",
        "/runs/nope/plan",
        "/runs/nope/output",
        "/executions/nope",
        &format!("/executions/{uuid}"),
        &format!("/executions/{uuid}/output"),
        "/nodes/nope",
        &format!("/nodes/{uuid}"),
        "/nodes/nope/executions",
        "/nodes/web-01?cluster=nope",
        "/clusters/nope",
        "/clusters/nope/nodes",
        "/runs?cluster=nope",
        "/events?run=nope",
    ] {
        is_problem(&setup.get(path).await, StatusCode::NOT_FOUND, "not_found");
    }
    for path in ["/runs/nope/cancel", "/nodes/nope/drain", "/nodes/nope/undrain"] {
        is_problem(&setup.post(path, &json!(null)).await, StatusCode::NOT_FOUND, "not_found");
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems() {
    let setup = Setup::new().await;
    for path in ["/nowhere", "/api/v2/runs", "/runs/a/b/c"] {
        is_problem(&setup.get(path).await, StatusCode::NOT_FOUND, "unknown_path");
    }
    let answer = send(setup.request(Method::DELETE, "/runs")).await;
    is_problem(&answer, StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed");
    let allowed = answer.headers["allow"].to_str().unwrap();
    assert!(allowed.contains("GET") && allowed.contains("POST"), "{allowed}");
}

#[tokio::test]
async fn wrong_query_parameters_are_refused_by_name() {
    let setup = Setup::new().await;
    for (path, named) in [
        ("/runs?colour=red", "unknown parameter `colour`"),
        ("/runs?limit=1001", "limit: `1001` is not a number from 1 to 1000"),
        ("/runs?limit=0", "limit: `0` is not a number from 1 to 1000"),
        ("/runs?limit=-1", "limit: `-1` is not a number from 1 to 1000"),
        ("/runs?limit=many", "limit: `many` is not a number from 1 to 1000"),
        ("/runs?limit=", "limit: `` is not a number from 1 to 1000"),
        ("/runs?limit=99999999999", "limit: `99999999999` is not a number from 1 to 1000"),
        ("/runs?offset=-1", "offset: `-1` is not a whole number of 0 or more"),
        ("/runs?offset=99999999999999999999", "offset: `99999999999999999999` is too large"),
        ("/runs?status=sleepy", "status: `sleepy`"),
        ("/nodes?sort=size", "size"),
        ("/nodes?status=dead", "status: `dead`"),
        ("/nodes/web-01?x=1", "`x`"),
        ("/status?verbose=1", "unknown parameter `verbose`"),
        ("/events?since=x", "since: `x` is not a whole number of 0 or more"),
        ("/events?since=99", "since: 99 is after the last event, 0"),
        ("/events?follow=maybe", "follow"),
        ("/events?limit=5", "limit: a stream has no limit"),
        ("/clusters/default/nodes?limit=2000", "limit: `2000`"),
        ("/runs?offset=10001", "offset: `10001` is not a number from 0 to 10000; `cursor`"),
        ("/runs?cursor=x", "cursor: it is not the `next` of a page of this list"),
        ("/runs?cursor=WyJub2RlcyIsMCwxXQ", "cursor"),
        ("/runs?paused=yes", "paused"),
        ("/nodes?selector=group:(", "selector: "),
        ("/node-counts?by=zone", "by: it is not `group`, `label:KEY` or `status`"),
        ("/runs?from=now", "from"),
    ] {
        let answer = setup.get(path).await;
        is_problem(&answer, StatusCode::BAD_REQUEST, "bad_query");
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.contains(named), "{path}: {detail}");
    }
    let answer = setup.post("/runs?target=group:(", &noop()).await;
    is_problem(&answer, StatusCode::BAD_REQUEST, "bad_query");
}

#[tokio::test]
async fn mistakes_in_a_definition_have_path_line_and_column() {
    let setup = Setup::new().await;
    let text = "{\n  \"target\": \"all\",\n  \"tasks\": [\n    {\"backend\": \"tset\", \"action\": \"noop\"}\n  ]\n}";
    for path in ["/runs", "/plan", "/validate"] {
        let request = setup.request(Method::POST, path).header("Content-Type", "application/json").body(text);
        let answer = send(request).await;
        is_problem(&answer, StatusCode::UNPROCESSABLE_ENTITY, "invalid_definition");
        let error = &answer.body["errors"][0];
        assert_eq!(error["path"], "tasks[0].backend", "{error}");
        assert_eq!(error["line"], 4);
        assert!(error["column"].as_u64().is_some_and(|column| column > 4));
        assert!(error["message"].as_str().is_some_and(|message| message.contains("`test`")), "{error}");
    }
}

#[tokio::test]
async fn a_body_that_is_not_what_it_says_is_malformed() {
    let setup = Setup::new().await;
    let send_as = |content_type: &'static str, body: &'static str| {
        send(setup.request(Method::POST, "/runs").header("Content-Type", content_type).body(body))
    };
    let answer = send_as("application/json", "{\"tasks\": [,]}").await;
    is_problem(&answer, StatusCode::BAD_REQUEST, "malformed");
    assert_eq!(answer.body["errors"][0]["line"], 1);
    is_problem(&send_as("application/json", "").await, StatusCode::BAD_REQUEST, "malformed");
    is_problem(
        &send_as("application/yaml", "tasks: [").await,
        StatusCode::UNPROCESSABLE_ENTITY,
        "invalid_definition",
    );
    let form = send_as("application/x-www-form-urlencoded", "a=b").await;
    is_problem(&form, StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type");
}

#[tokio::test]
async fn a_body_of_more_than_a_mebibyte_is_too_large() {
    let setup = Setup::new().await;
    let body = |bytes: usize| {
        let mut text = "# ".to_owned();
        text.extend(std::iter::repeat_n('x', bytes - 2));
        setup.request(Method::POST, "/validate").header("Content-Type", "application/yaml").body(text)
    };
    is_problem(&send(body(1024 * 1024 + 1)).await, StatusCode::PAYLOAD_TOO_LARGE, "too_large");
    let fitting = send(body(1024 * 1024)).await;
    is_problem(&fitting, StatusCode::UNPROCESSABLE_ENTITY, "invalid_definition");
}

#[tokio::test]
async fn a_refused_run_lists_the_nodes_that_stand_in_the_way() {
    let setup = Setup::new().await;
    setup.agent("web-01", &["web"]).await;
    let nobody = setup.post("/runs?target=group:none", &noop()).await;
    is_problem(&nobody, StatusCode::CONFLICT, "refused");
    send(setup.request(Method::POST, "/nodes/web-01/drain")).await;
    let drained = setup.post("/runs", &noop()).await;
    is_problem(&drained, StatusCode::CONFLICT, "refused");
    assert_eq!(drained.body["nodes"][0]["node"], "web-01");
    assert_eq!(setup.ok("/runs").await["pagination"]["total"], 0);
}

#[tokio::test]
async fn an_idempotency_key_that_is_none_is_refused() {
    let setup = Setup::new().await;
    for key in ["", &"k".repeat(256)] {
        let answer =
            send(setup.request(Method::POST, "/runs").header("Idempotency-Key", key).json(&noop())).await;
        is_problem(&answer, StatusCode::BAD_REQUEST, "bad_idempotency_key");
    }
}

#[tokio::test]
async fn every_answer_has_a_request_id_and_keeps_the_clients_own() {
    let setup = Setup::new().await;
    let drawn = setup.get("/nowhere").await;
    assert_eq!(drawn.headers["x-request-id"].len(), 32);
    let own = send(setup.request(Method::GET, "/status").header("X-Request-Id", "mine-7")).await;
    assert_eq!(own.headers["x-request-id"], "mine-7");
    assert_ne!(own.body, Value::Null);
}

#[tokio::test]
async fn a_wrong_last_event_id_is_refused_by_the_name_of_the_header() {
    let setup = Setup::new().await;
    for path in ["/events", "/events?since=0", "/live?topics=nodes"] {
        for (id, why) in [("99", "99 is after the last event, 0"), ("x", "it is not the number of an event")]
        {
            let answer = send(setup.request(Method::GET, path).header("Last-Event-ID", id)).await;
            is_problem(&answer, StatusCode::BAD_REQUEST, "bad_last_event_id");
            assert_eq!(answer.body["detail"], format!("the header Last-Event-ID is wrong: {why}"), "{path}");
        }
    }
}
