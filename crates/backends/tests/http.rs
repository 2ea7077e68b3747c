//! The backend `http` against real servers on this machine.

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{any, get};
use downbeat_backends::{Finish, Http};
use downbeat_core::execution::Verdict;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use support::Bench;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_util::io::ReaderStream;

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

async fn serve(router: Router) -> String {
    let (listener, address) = listen().await;
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

async fn echo(method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> String {
    let header = headers.get("x-token").map_or("", |value| value.to_str().unwrap());
    format!("{method} {uri} [{header}] {}", String::from_utf8_lossy(&body))
}

/// As servers format it for people.
const OBJECT: &str = "{\n  \"ready\": true,\n  \"count\": 3,\n  \"name\": \"a b\"\n}\n";

/// The recorded requests, with sender and content type.
async fn who(headers: HeaderMap, uri: Uri, body: Bytes) -> String {
    let header = |name| headers.get(name).map_or("-", |value| value.to_str().unwrap()).to_owned();
    let body = String::from_utf8_lossy(&body);
    format!("{uri} {} {} {body}", header(header::AUTHORIZATION), header(header::CONTENT_TYPE))
}

fn router() -> Router {
    Router::new()
        .route("/echo", any(echo))
        .route("/teapot", any(|| async { (StatusCode::IM_A_TEAPOT, "short and stout") }))
        .route("/empty", any(|| async { StatusCode::NO_CONTENT }))
        .route("/large", get(|| async { Body::from("0123456789".repeat(300_000)) }))
        .route("/begins", get(begins))
        .route("/object", get(|| async { ([(header::CONTENT_TYPE, "application/json")], OBJECT) }))
        .route("/who", any(who))
        .route(
            "/endless",
            get(|| async {
                Body::from_stream(futures_util::stream::repeat(Ok::<_, std::convert::Infallible>(
                    Bytes::from_static(&[b'x'; 65536]),
                )))
            }),
        )
        .route("/once", get(|| async { Redirect::temporary("/echo") }))
        .route("/loop", get(|| async { Redirect::temporary("/loop") }))
        .route("/file", get(|| async { to("file:///etc/passwd") }))
        .route("/ftp", get(|| async { to("ftp://127.0.0.1/x") }))
}

fn to(location: &'static str) -> Response {
    (StatusCode::FOUND, [(header::LOCATION, location)]).into_response()
}

/// Sends `ready` and continues forever.
async fn begins() -> Response {
    let (mut writer, reader) = tokio::io::duplex(64);
    tokio::spawn(async move {
        let _ = writer.write_all(b"ready\n").await;
        std::future::pending::<()>().await;
    });
    Response::new(Body::from_stream(ReaderStream::new(reader)))
}

async fn request(bench: &Bench, params: Value) -> Finish {
    bench.forget_output();
    bench.run(&Http::default(), "request", params).await
}

#[tokio::test]
async fn status_and_body_are_printed() {
    let (bench, base) = (Bench::new(), serve(router()).await);
    assert_eq!(request(&bench, json!({"url": format!("{base}/echo?a=b%20c")})).await, Finish::succeeded());
    assert_eq!(
        (bench.stdout().as_str(), bench.stderr().as_str()),
        ("GET /echo?a=b%20c [] ", "HTTP/1.1 200 OK\n")
    );
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let params = json!({"url": format!("{base}/echo"), "method": method, "body": "{\"a\": 1}\n",
            "headers": {"X-Token": "s 1", "Content-Type": "application/json"}});
        assert_eq!(request(&bench, params).await, Finish::succeeded());
        assert_eq!(bench.stdout(), format!("{method} /echo [s 1] {{\"a\": 1}}\n"));
    }
    assert_eq!(
        request(&bench, json!({"url": format!("{base}/echo"), "method": "HEAD"})).await,
        Finish::succeeded()
    );
    assert_eq!(bench.stdout(), "");
}

#[tokio::test]
async fn what_is_expected_decides() {
    let (bench, base) = (Bench::new(), serve(router()).await);
    for (path, expect, error) in [
        ("empty", Value::Null, None),
        ("teapot", Value::Null, Some("the status is 418 I'm a teapot; expected 2xx")),
        ("teapot", json!({"status": [200, "418"]}), None),
        ("teapot", json!({"status": "4xx", "contains": "stout"}), None),
        (
            "teapot",
            json!({"status": 418, "contains": "thin"}),
            Some("the response does not contain \"thin\""),
        ),
        ("echo", json!({"status": [204, 301]}), Some("the status is 200 OK; expected 204 or 301")),
        ("large", json!({"contains": "9012345678901234567890"}), None),
        ("object", json!({"headers": {"Content-Type": "JSON"}, "json": {"ready": true, "count": 3}}), None),
        ("object", json!({"headers": {"x-none": ""}}), Some("the response has no header `x-none`")),
        (
            "object",
            json!({"headers": {"Content-Type": "text"}}),
            Some("the header `content-type` is \"application/json\"; expected it to contain \"text\""),
        ),
        (
            "object",
            json!({"json": {"ready": false}}),
            Some("`ready` of the response is true; expected false"),
        ),
        ("object", json!({"json": {"gone": 1}}), Some("the response has no `gone`")),
        ("teapot", json!({"status": 418, "json": {}}), Some("the response is not a JSON object")),
        ("large", json!({"json": {}}), Some("the response is too long to be checked as JSON")),
        (
            "echo",
            json!({"stat": 1}),
            Some("param `expect`: unknown key `stat`; write status, contains, headers or json"),
        ),
    ] {
        let mut params = json!({"url": format!("{base}/{path}")});
        if !expect.is_null() {
            params["expect"] = expect.clone();
        }
        let finish = request(&bench, params).await;
        assert_eq!(finish.error.as_deref(), error, "{path} {expect}");
        assert_eq!(finish.verdict, if error.is_none() { Verdict::Succeeded } else { Verdict::Failed });
    }
    request(&bench, json!({"url": format!("{base}/large")})).await;
    assert_eq!(bench.stdout().len(), 3_000_000);
}

#[tokio::test]
async fn what_people_write_by_hand_elsewhere_has_its_param() {
    let (bench, base) = (Bench::new(), serve(router()).await);
    let login = base.replace("http://", "http://joe:a%20b@");
    for (params, expected) in [
        (json!({"query": {"a": "b c", "d": "e&f=g#h"}}), "/who?a=b+c&d=e%26f%3Dg%23h - - "),
        (json!({"url": format!("{base}/who?x=1"), "query": {"y": "2"}}), "/who?x=1&y=2 - - "),
        (json!({"bearer": "abc.d=="}), "/who Bearer abc.d== - "),
        (json!({"url": format!("{login}/who")}), "/who Basic am9lOmEgYg== - "),
        (json!({"method": "POST", "json": {"a": [1, "x"]}}), "/who - application/json {\"a\":[1,\"x\"]}"),
        (
            json!({"method": "POST", "json": {}, "headers": {"Content-Type": "application/merge-patch+json"}}),
            "/who - application/merge-patch+json {}",
        ),
    ] {
        let mut given = json!({"url": format!("{base}/who")});
        given.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
        assert_eq!(request(&bench, given).await, Finish::succeeded(), "{params}");
        assert_eq!(bench.stdout(), expected);
    }
    for (params, expected) in [
        (json!({"body": "x", "json": 1}), "params `body` and `json`: cannot be used together; remove one"),
        (
            json!({"bearer": "a", "headers": {"authorization": "x"}}),
            "param `headers.Authorization`: is already set by",
        ),
        (json!({"url": login, "bearer": "a"}), "param `bearer`: the URL already contains a user"),
    ] {
        let mut given = json!({"url": format!("{base}/who")});
        given.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
        let error = request(&bench, given).await.error.unwrap();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[tokio::test]
async fn an_object_over_several_lines_is_one_line_where_values_are_wanted() {
    let (mut bench, base) = (Bench::new(), serve(router()).await);
    let given = json!({"url": format!("{base}/object")});
    assert_eq!(request(&bench, given.clone()).await, Finish::succeeded());
    assert_eq!(bench.stdout(), OBJECT, "as it came");
    bench.values = Some(bench.root().join("values"));
    assert_eq!(request(&bench, given).await, Finish::succeeded());
    assert_eq!(bench.stdout(), "{\"count\":3,\"name\":\"a b\",\"ready\":true}\n");
    for (path, length) in [("echo", 13), ("large", 3_000_000)] {
        assert_eq!(request(&bench, json!({"url": format!("{base}/{path}")})).await, Finish::succeeded());
        assert_eq!(bench.stdout().len(), length, "a body that is not an object is printed unchanged");
    }
}

#[tokio::test]
async fn what_does_not_end_is_given_up_on() {
    let (bench, base) = (Bench::new(), serve(router()).await);
    let finish = request(&bench, json!({"url": format!("{base}/begins"), "timeout": "200ms"})).await;
    assert_eq!(finish, Finish::failed(None, "timed out after 200ms"));
    let finish = request(&bench, json!({"url": format!("{base}/endless")})).await;
    assert_eq!(finish, Finish::failed(None, "the response is longer than 64 MiB"));
}

#[tokio::test]
async fn a_redirect_that_is_not_followed_is_the_response() {
    let (bench, base) = (Bench::new(), serve(router()).await);
    let given = json!({"url": format!("{base}/once"), "follow": false,
        "expect": {"status": 307, "headers": {"Location": "/echo"}}});
    assert_eq!(request(&bench, given).await, Finish::succeeded());
    assert_eq!(bench.stdout(), "");
}

#[tokio::test]
async fn redirects_are_followed_within_http_and_not_forever() {
    let (bench, base) = (Bench::new(), serve(router()).await);
    assert_eq!(request(&bench, json!({"url": format!("{base}/once")})).await, Finish::succeeded());
    assert_eq!(bench.stdout(), "GET /echo [] ");
    for (path, expected) in [
        ("loop", "the request failed: redirected more than 10 times"),
        ("file", "the request failed: redirected from http to file; this is not allowed"),
        ("ftp", "the request failed: redirected from http to ftp; this is not allowed"),
    ] {
        let finish = request(&bench, json!({"url": format!("{base}/{path}")})).await;
        assert_eq!(finish.error.as_deref(), Some(expected), "{path}");
        assert_eq!(bench.stdout(), "");
    }
}

/// Two servers of different origins: the first redirects every request to the second, which records it.
async fn led_astray(status: StatusCode) -> (String, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noting = seen.clone();
    let second =
        serve(Router::new().fallback(move |method: Method, headers: HeaderMap, body: Bytes| async move {
            let headers: Vec<String> =
                headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
            let body = String::from_utf8_lossy(&body).into_owned();
            noting.lock().unwrap().push(format!("{method} {} | {body}", headers.join(", ")));
            "arrived"
        }))
        .await;
    let first = serve(Router::new().fallback(move || async move {
        (status, [(header::LOCATION, format!("{second}/elsewhere"))], "go away")
    }))
    .await;
    (first, seen)
}

#[tokio::test]
async fn headers_and_body_never_reach_another_origin() {
    let bench = Bench::new();
    for status in [301, 302, 303, 307, 308] {
        let (url, seen) = led_astray(StatusCode::from_u16(status).unwrap()).await;
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            let given = json!({"url": url, "method": method, "body": "CANARY-body",
                "headers": {"X-Vault-Token": "CANARY-token", "Authorization": "Bearer CANARY-login",
                    "Cookie": "id=CANARY-cookie", "Content-Type": "text/CANARY"}});
            let finish = request(&bench, given).await;
            let arrived: Vec<String> = seen.lock().unwrap().drain(..).collect();
            if matches!(method, "GET" | "HEAD") {
                assert_eq!(finish, Finish::succeeded(), "{status} {method}");
                assert_eq!(arrived.len(), 1, "{status} {method}");
                assert!(!arrived[0].contains("CANARY"), "{status} {method}: {arrived:?}");
            } else {
                let error = finish.error.unwrap();
                assert!(error.starts_with(&format!("the status is {status} ")), "{error}");
                assert!(error.contains(": redirected to another origin (http://127.0.0.1:"), "{error}");
                assert!(error.ends_with("request that URL directly"), "{error}");
                assert_eq!((arrived, bench.stdout().as_str()), (Vec::new(), "go away"), "{status} {method}");
            }
        }
    }
    // A job that expects the redirect succeeds.
    let (url, seen) = led_astray(StatusCode::TEMPORARY_REDIRECT).await;
    let given = json!({"url": url, "method": "POST", "body": "x", "expect": {"status": 307}});
    assert_eq!((request(&bench, given).await, seen.lock().unwrap().len()), (Finish::succeeded(), 0));
}

#[tokio::test]
async fn headers_that_would_reframe_the_request_are_refused() {
    let (bench, base) = (Bench::new(), serve(router()).await);
    for (headers, expected) in [
        (json!({"Content-Length": "1"}), "param `headers.Content-Length`: is set by the backend; remove it"),
        (
            json!({"transfer-encoding": "chunked"}),
            "param `headers.transfer-encoding`: is set by the backend; remove it",
        ),
        (json!({"A": "1", "a": "2"}), "param `headers.a`: is set twice, with different case; remove one"),
    ] {
        let finish = request(&bench, json!({"url": base, "headers": headers})).await;
        assert_eq!(finish.error.as_deref(), Some(expected));
    }
}

#[tokio::test]
async fn who_does_not_answer_is_named_without_the_password() {
    let bench = Bench::new();
    let (listener, address) = listen().await;
    drop(listener);
    let finish = request(&bench, json!({"url": format!("http://joe:secret@{address}/")})).await;
    let error = finish.error.unwrap();
    assert!(error.starts_with("the request failed: ") && error.contains("refused"), "{error}");
    assert!(!error.contains("secret"), "{error}");

    let (listener, address) = listen().await;
    let cut = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await.unwrap();
    };
    let (finish, ()) = tokio::join!(request(&bench, json!({"url": format!("http://{address}/")})), cut);
    assert!(finish.error.unwrap().starts_with("the response was interrupted: "));
    assert_eq!(bench.stdout(), "half");
}

#[tokio::test]
async fn cancelling_ends_a_request_before_and_within_the_response() {
    let base = serve(router()).await;
    let bench = Bench::new();
    let finish =
        bench.cancel_when_ready(&Http::default(), "request", json!({"url": format!("{base}/begins")})).await;
    assert_eq!(finish, Finish::cancelled(None));

    let (bench, asked) = (Bench::new(), Arc::new(AtomicU32::new(0)));
    let counted = asked.clone();
    let silent = Router::new().fallback(move || async move {
        counted.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1000)).await;
    });
    let url = serve(silent).await;
    let http = Http::default();
    let (finish, ()) = tokio::join!(
        bench.run(&http, "request", json!({"url": url})),
        bench.cancel_once(|| asked.load(Ordering::Relaxed) > 0)
    );
    assert_eq!(finish, Finish::cancelled(None));
}

/// A server with a certificate of its own authority; returns its address and the authority's certificate.
async fn serve_with_tls(answer: &'static str) -> (String, reqwest::Certificate) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    let trusted = reqwest::Certificate::from_der(authority_certificate.der()).unwrap();
    (format!("https://{address}"), trusted)
}

#[tokio::test]
async fn https_needs_a_certificate_that_is_trusted() {
    let bench = Bench::new();
    let (url, trusted) =
        serve_with_tls("HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nsecret").await;
    let finish = bench.run(&Http::default(), "request", json!({"url": url})).await;
    assert_eq!(finish.verdict, Verdict::Failed);
    assert!(finish.error.as_deref().unwrap().contains("certificate"), "{finish:?}");
    assert_eq!(bench.stdout(), "");
    let finish = bench.run(&Http::trusting(vec![trusted]), "request", json!({"url": url})).await;
    assert_eq!(finish, Finish::succeeded());
    assert_eq!(bench.stdout(), "secret");
}

#[tokio::test]
async fn nobody_is_led_from_https_to_http() {
    let (url, trusted) = serve_with_tls(
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    )
    .await;
    let finish = Bench::new().run(&Http::trusting(vec![trusted]), "request", json!({"url": url})).await;
    assert_eq!(
        finish.error.as_deref(),
        Some("the request failed: redirected from https to http; this is not allowed")
    );
}
