//! Which requests are accepted: pages of other sites are refused by every route that changes something, foreign host
//! names by every route. The routes come from the OpenAPI document, so that a new one cannot be forgotten.

use std::net::{Ipv4Addr, SocketAddr};

use downbeat_core::Span;
use downbeat_server::Settings;
use downbeat_testbed::in_process::{Answer, Setup, noop, send, settings};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

/// One operation of the document.
struct Operation {
    method: Method,
    path: String,
    id: String,
}

impl Operation {
    fn changes(&self) -> bool {
        self.method != Method::GET
    }

    fn request(&self, setup: &Setup, run: &str) -> RequestBuilder {
        let id = if self.path.contains("/runs/") { run } else { "web-01" };
        let url = format!("http://{}{}", setup.server.http_addr(), self.path.replace("{id}", id));
        setup.http.request(self.method.clone(), url)
    }

    /// Returns a body that the operation would accept.
    fn body(&self) -> Value {
        if self.path.contains("{id}") { json!({}) } else { noop() }
    }
}

fn operations() -> Vec<Operation> {
    let document = downbeat_server::http::openapi();
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            operations.push(Operation {
                method: method.to_uppercase().parse().unwrap(),
                path: path.clone(),
                id: operation["operationId"].as_str().unwrap().to_owned(),
            });
        }
    }
    operations
}

/// Starts a server with a node and an open run, so that each route could change something.
async fn busy() -> (Setup, String) {
    // The node sends no heartbeats, and its silence must not become an event.
    let hour = Span::from_secs(3_600);
    let (node_stale_after, node_offline_after, lease_ttl) = (hour, Span(hour.0 * 2), hour);
    let patient = settings("memory:", "one");
    let setup = Setup::with(Settings { node_stale_after, node_offline_after, lease_ttl, ..patient }).await;
    let mut agent = setup.agent("web-01", &[]).await;
    let run = setup.submit(&noop()).await;
    let work = agent.take().await;
    agent.start(&work).await;
    (setup, run)
}

async fn events(setup: &Setup) -> Value {
    setup.ok("/events?follow=0&since=0&limit=1000").await["data"].clone()
}

fn is_refused(answer: &Answer, status: StatusCode, code: &str, what: &str) {
    assert_eq!(answer.status, status, "{what}: {}", answer.body);
    assert_eq!(answer.content_type, "application/problem+json", "{what}");
    assert_eq!(answer.body["code"], code, "{what}: {}", answer.body);
}

const CROSS_SITE: (StatusCode, &str) = (StatusCode::FORBIDDEN, "cross_site");
const UNKNOWN_HOST: (StatusCode, &str) = (StatusCode::MISDIRECTED_REQUEST, "unknown_host");
const UNSUPPORTED: (StatusCode, &str) = (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type");

/// Names and values.
type Headers = &'static [(&'static str, &'static str)];

/// Requests that pages of other sites can send, and how they are refused.
const BY_HEADERS: [(Headers, (StatusCode, &str)); 9] = [
    (&[("Origin", "https://evil.example")], CROSS_SITE),
    (&[("Origin", "null")], CROSS_SITE),
    (&[("Origin", "http://127.0.0.1:1")], CROSS_SITE),
    (&[("Origin", "http://evil.localhost")], CROSS_SITE),
    (&[("Sec-Fetch-Site", "cross-site")], CROSS_SITE),
    (&[("Sec-Fetch-Site", "same-site")], CROSS_SITE),
    (&[("Host", "evil.example")], UNKNOWN_HOST),
    // After rebinding, the page and the server are of one origin.
    (&[("Host", "evil.example:4680"), ("Origin", "http://evil.example:4680")], UNKNOWN_HOST),
    (&[("Host", "evil.example"), ("Sec-Fetch-Site", "same-origin")], UNKNOWN_HOST),
];

/// Types that a page may send without a preflight check.
const BY_TYPE: [Option<&str>; 4] = [
    None,
    Some("text/plain"),
    Some("application/x-www-form-urlencoded"),
    Some("multipart/form-data; boundary=x"),
];

#[tokio::test]
async fn no_route_that_changes_something_obeys_a_page_of_another_site() {
    let (setup, run) = busy().await;
    let before = events(&setup).await;
    let mut refused = 0;
    for operation in operations().iter().filter(|operation| operation.changes()) {
        for (headers, (status, code)) in BY_HEADERS {
            for body in [None, Some(operation.body())] {
                let mut request = operation.request(&setup, &run);
                for (name, value) in headers {
                    request = request.header(*name, *value);
                }
                if let Some(body) = &body {
                    request = request.json(body);
                }
                let what = format!("{}: {headers:?}, {body:?}", operation.id);
                is_refused(&send(request).await, status, code, &what);
                refused += 1;
            }
        }
        for content_type in BY_TYPE {
            let mut request = operation.request(&setup, &run).body(operation.body().to_string());
            if let Some(content_type) = content_type {
                request = request.header("Content-Type", content_type);
            }
            let what = format!("{}: {content_type:?}", operation.id);
            is_refused(&send(request).await, UNSUPPORTED.0, UNSUPPORTED.1, &what);
            refused += 1;
        }
    }
    assert!(refused >= 9 * 22, "{refused}");
    assert_eq!(events(&setup).await, before, "nothing happened");

    // The same requests are accepted from a program.
    let mut obeyed = Vec::new();
    for operation in operations().iter().filter(|operation| operation.changes()) {
        let (setup, run) = busy().await;
        let before = events(&setup).await;
        let answer = send(operation.request(&setup, &run).json(&operation.body())).await;
        let is_barred =
            [CROSS_SITE, UNKNOWN_HOST, UNSUPPORTED].iter().any(|(_, code)| answer.body["code"] == *code);
        assert!(!is_barred, "{}: {}", operation.id, answer.body);
        if events(&setup).await != before {
            obeyed.push(operation.id.clone());
        }
    }
    for id in ["submitRun", "cancelRun", "drainNode"] {
        assert!(obeyed.iter().any(|obeyed| obeyed == id), "{id} is not among {obeyed:?}");
    }
}

#[tokio::test]
async fn no_route_answers_for_a_name_that_is_not_the_servers() {
    let (setup, run) = busy().await;
    let pages = ["/api/v1/docs", "/api/v1/openapi.json", "/nowhere"];
    let pages =
        pages.map(|path| Operation { method: Method::GET, path: path.to_owned(), id: path.to_owned() });
    for operation in operations().iter().chain(&pages) {
        for host in ["evil.example", "evil.localhost", "localhost.evil.example:4680", "192.0.2.1"] {
            let request = operation.request(&setup, &run).header("Host", host);
            is_refused(
                &send(request).await,
                UNKNOWN_HOST.0,
                UNKNOWN_HOST.1,
                &format!("{} {host}", operation.id),
            );
        }
    }
}

#[tokio::test]
async fn a_page_of_the_server_itself_may_do_everything() {
    let (setup, _) = busy().await;
    let port = setup.server.http_addr().port();
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        let host = format!("{host}:{port}");
        let of_page = |request: RequestBuilder| request.header("Host", &host).header("Accept-Language", "en");
        let origin = format!("http://{host}");
        for (name, value) in [("Origin", origin.as_str()), ("Sec-Fetch-Site", "same-origin")] {
            let request = of_page(setup.request(Method::POST, "/runs")).header(name, value).json(&noop());
            assert_eq!(send(request).await.status, StatusCode::CREATED, "{host} {name}");
        }
        let page = send(of_page(setup.request(Method::GET, "/docs"))).await;
        assert_eq!(page.content_type, "text/html; charset=utf-8");
        let mut stream = setup.stream(of_page(setup.request(Method::GET, "/events?since=0"))).await;
        assert_eq!(stream.next().await.unwrap().id.as_deref(), Some("1"));
    }
}

#[tokio::test]
async fn a_server_for_others_answers_programs_by_any_name_and_browsers_by_known_ones() {
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let allowed_hosts = vec!["jobs.example".to_owned()];
    let setup = Setup::with(Settings { http: everywhere, allowed_hosts, ..settings("memory:", "one") }).await;
    let asked = |host: &str| setup.request(Method::GET, "/status").header("Host", host);
    for host in ["jobs.example", "other.example:4680", "192.0.2.1", "localhost"] {
        assert_eq!(send(asked(host)).await.status, StatusCode::OK, "{host}");
    }
    for (header, value) in
        [("Accept-Language", "en"), ("Sec-Fetch-Site", "same-origin"), ("Origin", "http://x")]
    {
        for host in ["jobs.example:4680", "192.0.2.1", "localhost"] {
            assert_eq!(
                send(asked(host).header(header, value)).await.status,
                StatusCode::OK,
                "{host} {header}"
            );
        }
        let answer = send(asked("other.example").header(header, value)).await;
        is_refused(&answer, UNKNOWN_HOST.0, UNKNOWN_HOST.1, header);
        assert!(answer.body["detail"].as_str().unwrap().contains("allowed_hosts"), "{}", answer.body);
    }
}

#[tokio::test]
async fn http1_at_the_agents_port_gets_the_rest_port_at_once() {
    let setup = Setup::new().await;
    let grpc = setup.server.grpc_addr();
    let long = "x".repeat(30_000);
    for request in [
        setup.http.get(format!("http://{grpc}/api/v1/status")),
        setup.http.post(format!("http://{grpc}/api/v1/runs")).json(&noop()),
        setup.http.post(format!("http://{grpc}/api/v1/runs")).body(long),
    ] {
        let answer = send(request).await;
        is_refused(&answer, StatusCode::BAD_REQUEST, "wrong_port", "the agents' port");
        assert!(answer.body["detail"].as_str().unwrap().contains("--http"), "{}", answer.body);
    }
    // Agents are served there as before.
    setup.agent("web-01", &[]).await;
    assert_eq!(setup.ok("/nodes").await["data"][0]["hostname"], "web-01");
}

#[tokio::test]
async fn methods_that_do_not_exist_are_one_label() {
    let setup = Setup::new().await;
    for number in 0..20 {
        let invented = Method::from_bytes(format!("BREW{number}").as_bytes()).unwrap();
        let answer = send(setup.request(invented, "/status")).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    }
    let (_, metrics) = setup.root("/metrics").await;
    assert!(!metrics.contains("BREW"));
    let counted = metrics
        .lines()
        .find(|line| line.starts_with("downbeat_http_requests_total") && line.contains(r#"method="other""#));
    assert!(counted.is_some_and(|line| line.ends_with(" 20")), "{counted:?}");
}
