//! The backend `http`: one request, and what is expected of the response. The body streams to the output.

mod expect;

use std::error::Error;
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::backend::{BackendSchema, Params};
use downbeat_core::shown::shown;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Certificate, Client, Method, Request, Url};

use self::expect::{Expect, Search};
use super::params::{map, text};
use crate::backend::{Backend, Call, Finish};
use crate::output::Stream;

const REDIRECTS: usize = 10;
/// A host that answers nothing is given up on before the task's own timeout, which may be hours.
const CONNECT: Duration = Duration::from_secs(30);
/// Headers that frame the request: another word about them would make it two requests to some servers.
const FRAMING: [&str; 4] = ["content-length", "transfer-encoding", "connection", "upgrade"];

#[derive(Debug, Default)]
pub struct Http {
    client: OnceLock<Client>,
    trusted: Vec<Certificate>,
}

impl Http {
    /// Trusts these certificates beside the host's own.
    pub fn trusting(trusted: Vec<Certificate>) -> Self {
        Self { client: OnceLock::new(), trusted }
    }

    /// Made when first used: a host without certificates is no reason not to start, nor to refuse plain HTTP.
    fn client(&self, url: &Url) -> Result<Client, String> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let builder = || {
            Client::builder()
                .user_agent(concat!("downbeat/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT)
                .redirect(Policy::custom(redirected))
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

/// From http to https and never back, so that nobody on the way sees what was meant to be secret.
fn redirected(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let from = attempt.previous().last().map_or("", |url| url.scheme()).to_owned();
    let to = attempt.url().scheme().to_owned();
    if attempt.previous().len() > REDIRECTS {
        return attempt.error(format!("redirected more than {REDIRECTS} times"));
    }
    match (from.as_str(), to.as_str()) {
        ("http", "http" | "https") | ("https", "https") => attempt.follow(),
        _ => attempt.error(format!("redirected from {from} to {to}, which is not followed")),
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
        let prepared = request(&call.params).and_then(|request| {
            Ok((self.client(request.url())?, request, Expect::read(call.params.get("expect"))?))
        });
        let (client, request, expect) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Finish::failed(None, error),
        };
        tokio::select! {
            biased;
            () = call.cancel.cancelled() => Finish::cancelled(None),
            finish = exchange(&client, request, &expect, &call) => finish,
        }
    }
}

fn request(params: &Params) -> Result<Request, String> {
    let url = text(params, "url").unwrap_or_default();
    let url: Url =
        url.parse().map_err(|error| format!("param `url`: `{}` is no URL: {error}", shown(url)))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!(
            "param `url`: scheme `{}` is not possible; write http or https",
            shown(url.scheme())
        ));
    }
    let method = text(params, "method").unwrap_or("GET");
    let method: Method =
        method.parse().map_err(|_| format!("param `method`: `{}` is no method", shown(method)))?;
    let mut request = Request::new(method, url);
    *request.headers_mut() = headers(params)?;
    if let Some(body) = text(params, "body") {
        *request.body_mut() = Some(body.to_owned().into());
    }
    Ok(request)
}

fn headers(params: &Params) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in map(params, "headers") {
        let refused = |why: &str| format!("param `headers.{}`: {why}", shown(&name));
        let header = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| refused("is no header's name; letters, digits and dashes are possible"))?;
        if FRAMING.contains(&header.as_str()) {
            return Err(refused("is set by the request itself; remove it"));
        }
        let value = HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| refused("its value holds a control character; remove it"))?;
        if headers.insert(header, value).is_some() {
            return Err(refused("is there twice, in capitals and not"));
        }
    }
    Ok(headers)
}

async fn exchange(client: &Client, request: Request, expect: &Expect, call: &Call) -> Finish {
    let mut response = match client.execute(request).await {
        Ok(response) => response,
        Err(error) => return Finish::failed(None, format!("the request failed: {}", reason(&error))),
    };
    let status = response.status();
    call.output.write(Stream::Stderr, format!("{:?} {status}\n", response.version()).as_bytes());
    let mut search = expect.contains.as_deref().map(Search::new);
    loop {
        match response.chunk().await {
            Ok(None) => break,
            Ok(Some(bytes)) => {
                call.output.write(Stream::Stdout, &bytes);
                if let Some(search) = &mut search {
                    search.feed(&bytes);
                }
            }
            Err(error) => return Finish::failed(None, format!("the response broke off: {}", reason(&error))),
        }
    }
    if !expect.is_status(status.as_u16()) {
        return Finish::failed(None, format!("the status is {status}, not {}", expect.statuses()));
    }
    if search.is_some_and(|search| !search.found()) {
        let wanted = shown(expect.contains.as_deref().unwrap_or_default());
        return Finish::failed(None, format!("the response does not contain \"{wanted}\""));
    }
    Finish::succeeded()
}

/// The innermost cause: the outer ones say only that a request failed, and repeat the URL with its password.
fn reason(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    if std::ptr::addr_eq(cause, error) { "cannot be sent".to_owned() } else { cause.to_string() }
}
