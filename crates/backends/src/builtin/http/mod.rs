//! The backend `http`: one request, and a check of its response. The body streams to the output.

mod body;
mod expect;
mod redirect;

use std::error::Error;
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::Span;
use downbeat_core::backend::{BackendSchema, Params};
use downbeat_core::shown::shown;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Method, Request, Response, Url};
use serde_json::Value;

use self::body::Body;
use self::expect::Expect;
use self::redirect::Next;
use super::params::{map, text};
use crate::backend::{Backend, Call, Finish};
use crate::output::Stream;

const REDIRECTS: usize = 10;
/// Fails for a host that does not respond, before the task's own timeout, which may be hours.
const CONNECT: Duration = Duration::from_secs(30);
/// Headers that frame the request: a second one could make it two requests to some servers.
const FRAMING: [&str; 4] = ["content-length", "transfer-encoding", "connection", "upgrade"];

#[derive(Debug, Default)]
pub struct Http {
    client: OnceLock<Client>,
    trusted: Vec<Certificate>,
}

/// How redirects are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Redirects {
    Follow,
    /// The redirect is the response.
    Stay,
}

impl Http {
    /// Trusts these certificates in addition to the host's own.
    pub fn trusting(trusted: Vec<Certificate>) -> Self {
        Self { trusted, ..Self::default() }
    }

    /// Creates the client when first used: a host without certificates can still start and use plain HTTP.
    fn client(&self, url: &Url) -> Result<Client, String> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let builder = || {
            Client::builder()
                .user_agent(concat!("downbeat/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT)
                // The request goes to its host, whatever proxy the agent's environment names.
                .no_proxy()
                // The client would send headers and body to any target: `redirect` decides.
                .redirect(Policy::none())
        };
        match builder().tls_certs_merge(self.trusted.clone()).build() {
            Ok(made) => return Ok(self.client.get_or_init(|| made).clone()),
            Err(_) if url.scheme() == "http" => builder().tls_certs_only([]).build(),
            Err(error) => Err(error),
        }
        .map_err(|error| {
            format!("cannot check certificates on this host: {}; install ca-certificates", reason(&error))
        })
    }
}

#[async_trait]
impl Backend for Http {
    fn schema(&self) -> BackendSchema {
        super::schema("http")
    }

    async fn run(&self, call: Call) -> Finish {
        if call.action != "request" {
            return Finish::failed(None, format!("backend `http` has no action `{}`", call.action));
        }
        let redirects = match call.params.get("follow") {
            Some(Value::Bool(false)) => Redirects::Stay,
            _ => Redirects::Follow,
        };
        let prepared = target(&call.params).and_then(|url| {
            let client = self.client(&url)?;
            let request = request(&client, url, &call.params)?;
            Ok((client, request, Expect::read(call.params.get("expect"))?))
        });
        let (client, request, expect) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Finish::failed(None, error),
        };
        tokio::select! {
            biased;
            () = call.cancel.cancelled() => Finish::cancelled(None),
            finish = exchange(&client, request, redirects, &expect, &call) => finish,
            after = expired(&call.params) => {
                Finish::failed(None, format!("timed out after {}", Span(after)))
            }
        }
    }
}

/// Waits until the request's own timeout; forever if it has none.
async fn expired(params: &Params) -> Duration {
    match text(params, "timeout").and_then(|text| text.parse::<Span>().ok()) {
        Some(Span(after)) => {
            tokio::time::sleep(after).await;
            after
        }
        None => std::future::pending().await,
    }
}

fn target(params: &Params) -> Result<Url, String> {
    let url = text(params, "url").unwrap_or_default();
    let mut url: Url =
        url.parse().map_err(|error| format!("param `url`: `{}` is not a valid URL: {error}", shown(url)))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!(
            "param `url`: scheme `{}` is not supported; write http or https",
            shown(url.scheme())
        ));
    }
    for (name, value) in map(params, "query") {
        url.query_pairs_mut().append_pair(&name, &value);
    }
    Ok(url)
}

/// Builds the request. A user and a password in the URL become a header.
fn request(client: &Client, url: Url, params: &Params) -> Result<Request, String> {
    let method = text(params, "method").unwrap_or("GET");
    let method: Method =
        method.parse().map_err(|_| format!("param `method`: `{}` is not a valid method", shown(method)))?;
    let headers = headers(params)?;
    let bearer = text(params, "bearer");
    check_credentials(&url, bearer.is_some(), headers.contains_key(AUTHORIZATION))?;
    let has_type = headers.contains_key(CONTENT_TYPE);
    let mut request = client.request(method, url).headers(headers);
    if let Some(token) = bearer {
        request = request.bearer_auth(token);
    }
    request = match (text(params, "body"), params.get("json")) {
        (Some(_), Some(_)) => {
            return Err("params `body` and `json`: cannot be used together; remove one".to_owned());
        }
        (Some(body), None) => request.body(body.to_owned()),
        (None, Some(value)) if has_type => request.body(value.to_string()),
        (None, Some(value)) => request.header(CONTENT_TYPE, "application/json").body(value.to_string()),
        (None, None) => request,
    };
    request.build().map_err(|error| format!("cannot build the request: {}", reason(&error)))
}

/// Refuses two sources of credentials.
fn check_credentials(url: &Url, bearer: bool, header: bool) -> Result<(), String> {
    let login = !url.username().is_empty() || url.password().is_some();
    match (login, bearer, header) {
        (true, true, _) => {
            Err("param `bearer`: the URL already contains a user; remove one of them".to_owned())
        }
        (true, _, true) | (_, true, true) => {
            Err("param `headers.Authorization`: is already set by `bearer` or the URL; remove one of them"
                .to_owned())
        }
        _ => Ok(()),
    }
}

fn headers(params: &Params) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in map(params, "headers") {
        let refused = |why: &str| format!("param `headers.{}`: {why}", shown(&name));
        let header = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| refused("is not a valid header name; write letters, digits and dashes"))?;
        if FRAMING.contains(&header.as_str()) {
            return Err(refused("is set by the backend; remove it"));
        }
        let value = HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| refused("its value contains a control character; remove it"))?;
        if headers.insert(header, value).is_some() {
            return Err(refused("is set twice, with different case; remove one"));
        }
    }
    Ok(headers)
}

/// Sends the request and follows redirects. Returns the last response, and why a redirect was not followed.
async fn send(
    client: &Client,
    mut request: Request,
    redirects: Redirects,
) -> Result<(Response, Option<String>), String> {
    for _ in 0..=REDIRECTS {
        let sent = (redirects == Redirects::Follow).then(|| request.try_clone()).flatten();
        let response = client.execute(request).await.map_err(|error| reason(&error))?;
        let Some(sent) = sent else { return Ok((response, None)) };
        match redirect::next(&sent, response.status(), response.headers()) {
            Next::Answer(note) => return Ok((response, note)),
            Next::Request(next) => request = *next,
            Next::Fail(why) => return Err(why),
        }
    }
    Err(format!("redirected more than {REDIRECTS} times"))
}

async fn exchange(
    client: &Client,
    request: Request,
    redirects: Redirects,
    expect: &Expect,
    call: &Call,
) -> Finish {
    let (mut response, note) = match send(client, request, redirects).await {
        Ok(answered) => answered,
        Err(error) => return Finish::failed(None, format!("the request failed: {error}")),
    };
    let status = response.status();
    call.output.write(Stream::Stderr, format!("{:?} {status}\n", response.version()).as_bytes());
    let mut body = Body::new(expect, call);
    loop {
        match response.chunk().await {
            Ok(None) => break,
            Ok(Some(bytes)) => {
                if let Err(error) = body.take(&bytes) {
                    return Finish::failed(None, error);
                }
            }
            Err(error) => {
                body.end();
                return Finish::failed(None, format!("the response was interrupted: {}", reason(&error)));
            }
        }
    }
    body.end();
    let wrong = if !expect.is_status(status.as_u16()) {
        let note = note.map_or_else(String::new, |note| format!(": {note}"));
        Some(format!("the status is {status}; expected {}{note}", expect.statuses()))
    } else {
        expect.wrong_header(response.headers()).or_else(|| body.wrong())
    };
    wrong.map_or_else(Finish::succeeded, |wrong| Finish::failed(None, wrong))
}

/// Returns the innermost cause: the outer ones only add that a request failed, and repeat the URL with its password.
fn reason(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    if std::ptr::addr_eq(cause, error) { "cannot be sent".to_owned() } else { cause.to_string() }
}
