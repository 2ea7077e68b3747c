//! Rules of outbound calls, with real services on this machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Redirect;
use axum::routing::{any, get, post};
use bytes::Bytes;
use downbeat_core::Span;
use downbeat_core::outbound::{Allow, Reserved};
use reqwest::Method;
use tokio::net::TcpListener;

use super::{Error, Outbound, Request};

/// Starts a service with all kinds of misbehaviour.
async fn service() -> SocketAddr {
    let router = Router::new()
        .route(
            "/echo",
            any(|method: axum::http::Method, headers: HeaderMap, body: Bytes| async move {
                let with = headers.contains_key(header::AUTHORIZATION);
                format!("{method} {} {with}", String::from_utf8_lossy(&body))
            }),
        )
        .route(
            "/status/{code}",
            any(|Path(code): Path<u16>| async move { StatusCode::from_u16(code).unwrap() }),
        )
        .route("/loop", any(|| async { Redirect::temporary("/loop") }))
        .route(
            "/hops/{left}",
            any(|Path(left): Path<u32>| async move {
                let to = if left == 0 { "/echo".to_owned() } else { format!("/hops/{}", left - 1) };
                Redirect::temporary(&to)
            }),
        )
        .route("/see-other", post(|| async { Redirect::to("/echo") }))
        .route("/metadata", any(|| async { Redirect::temporary("http://169.254.169.254/latest/meta-data/") }))
        .route(
            "/to-localhost/{port}",
            any(|Path(port): Path<u16>| async move {
                Redirect::temporary(&format!("http://localhost:{port}/echo"))
            }),
        )
        .route("/to-file", any(|| async { Redirect::temporary("file:///etc/passwd") }))
        .route("/never", any(std::future::pending::<()>))
        .route("/large", get(|| async { Body::from(vec![b'x'; 10 * 1024 * 1024]) }))
        .route(
            "/drip",
            get(|| async {
                let drops = futures_util::stream::unfold((), |()| async {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
                });
                Body::from_stream(drops)
            }),
        );
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn outbound(allow: &[&str], own: Vec<SocketAddr>) -> Outbound {
    Outbound::new(Allow::parse(allow.iter().copied()).unwrap(), own)
}

fn request(method: Method, url: String) -> Request {
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, "Bearer x".parse().unwrap());
    Request { method, url, headers, body: Bytes::from_static(b"body"), timeout: Span::from_secs(20) }
}

fn get_of(url: String) -> Request {
    request(Method::GET, url)
}

#[tokio::test]
async fn an_allowed_service_gets_the_request_and_its_answer_returns() {
    let address = service().await;
    let answer = outbound(&["127.0.0.1"], vec![])
        .send(request(Method::POST, format!("http://{address}/echo")))
        .await
        .unwrap();
    assert_eq!((answer.status.as_u16(), answer.body.as_ref()), (200, b"POST body true".as_ref()));
}

#[tokio::test]
async fn a_status_other_than_2xx_is_an_answer_until_success_is_required() {
    let address = service().await;
    let answer =
        outbound(&["127.0.0.1"], vec![]).send(get_of(format!("http://{address}/status/503"))).await.unwrap();
    let host = address.to_string();
    assert_eq!(answer.succeeded().unwrap_err(), Error::Status { host, status: 503 });
}

#[tokio::test]
async fn addresses_and_names_of_this_machine_are_refused() {
    let port = service().await.port();
    let outbound = outbound(&[], vec![]);
    for host in ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "0.0.0.0"] {
        let result = outbound.send(get_of(format!("http://{host}:{port}/echo"))).await;
        let Err(Error::Refused { why, .. }) = result else { panic!("{host}: {result:?}") };
        assert!(matches!(why, Reserved::Loopback | Reserved::Unspecified), "{host}: {why}");
    }
}

#[tokio::test]
async fn a_name_that_resolves_to_loopback_is_called_if_the_setting_has_the_name() {
    let port = service().await.port();
    let url = format!("http://localhost:{port}/echo");
    assert!(outbound(&["localhost"], vec![]).send(get_of(url)).await.is_ok());
}

#[tokio::test]
async fn a_redirect_to_a_reserved_address_is_refused() {
    let address = service().await;
    let outbound = outbound(&["127.0.0.1"], vec![]);
    let result = outbound.send(get_of(format!("http://{address}/metadata"))).await;
    let Err(Error::Refused { why: Reserved::Metadata, .. }) = result else { panic!("{result:?}") };
    // The name is not in the list, but its address is.
    let own = format!("http://{address}/to-localhost/{}", address.port());
    assert!(outbound.send(get_of(own)).await.is_ok());
    let result = outbound.send(get_of(format!("http://{address}/to-file"))).await;
    assert!(matches!(result, Err(Error::BadUrl(_))), "{result:?}");
}

#[tokio::test]
async fn three_redirects_are_followed_and_a_loop_ends() {
    let address = service().await;
    let outbound = outbound(&["127.0.0.1", "localhost"], vec![]);
    let answer = outbound.send(request(Method::POST, format!("http://{address}/hops/2"))).await.unwrap();
    assert_eq!(answer.body.as_ref(), b"POST body true");
    let host = address.to_string();
    for path in ["hops/3", "loop"] {
        let result = outbound.send(get_of(format!("http://{address}/{path}"))).await;
        assert_eq!(result.unwrap_err(), Error::Redirects { host: host.clone(), most: 3 });
    }
}

#[tokio::test]
async fn see_other_becomes_a_get_and_another_host_gets_no_credentials() {
    let address = service().await;
    let outbound = outbound(&["127.0.0.1", "localhost"], vec![]);
    let answer = outbound.send(request(Method::POST, format!("http://{address}/see-other"))).await.unwrap();
    assert_eq!(answer.body.as_ref(), b"GET  true");
    let elsewhere = format!("http://{address}/to-localhost/{}", address.port());
    let answer = outbound.send(request(Method::POST, elsewhere)).await.unwrap();
    assert_eq!(answer.body.as_ref(), b"POST body false");
}

#[tokio::test]
async fn a_service_that_never_answers_or_drips_times_out() {
    let address = service().await;
    let outbound = outbound(&["127.0.0.1"], vec![]);
    let timeout = Span(Duration::from_millis(200));
    for path in ["never", "drip"] {
        let request = Request { timeout, ..get_of(format!("http://{address}/{path}")) };
        let host = address.to_string();
        assert_eq!(outbound.send(request).await.unwrap_err(), Error::TimedOut { host, after: timeout });
    }
}

#[tokio::test]
async fn a_large_answer_is_read_up_to_the_bound() {
    let address = service().await;
    let answer =
        outbound(&["127.0.0.1"], vec![]).send(get_of(format!("http://{address}/large"))).await.unwrap();
    assert_eq!(answer.body.len(), 64 * 1024);
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let result = outbound(&["127.0.0.1"], vec![]).send(get_of(format!("http://{address}/"))).await;
    let why = "connection refused".to_owned();
    assert_eq!(result.unwrap_err(), Error::Unreachable { host: address.to_string(), why });
}

#[tokio::test]
async fn the_servers_own_port_is_refused_at_every_address_of_the_machine() {
    let Some(local) = local_address() else { return };
    let own = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 4680));
    let outbound = outbound(&[], vec![own]);
    let result = outbound.send(get_of(format!("http://{local}:4680/"))).await;
    assert!(matches!(result, Err(Error::Refused { why: Reserved::ItsOwn, .. })), "{result:?}");
    let result = outbound.send(get_of(format!("http://{local}:1/"))).await;
    assert!(matches!(result, Err(Error::Unreachable { .. })), "{result:?}");
}

/// Returns an address of this machine that is not loopback, if it has one.
fn local_address() -> Option<Ipv4Addr> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Nothing is sent.
    socket.connect("192.0.2.1:9").ok()?;
    match socket.local_addr().ok()? {
        SocketAddr::V4(address) if !address.ip().is_loopback() => Some(*address.ip()),
        _ => None,
    }
}
