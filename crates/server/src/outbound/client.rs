//! Owns [`Outbound`]: sends one HTTP request to a service of a user, with bounds for time, size, redirects and parallel
//! calls.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use downbeat_core::Span;
use downbeat_core::outbound::Allow;
use reqwest::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HeaderMap, LOCATION, RETRY_AFTER,
};
use reqwest::{Method, Response, StatusCode, Url};
use tokio::sync::Semaphore;

use super::error::{Error, host_of};
use super::guard::{CheckedResolver, Guard};

/// Redirects of one call: a service that moved needs one, a login page with its own needs two.
const REDIRECTS: usize = 3;
/// The part of an answer that is read and kept in memory.
const ANSWER_BYTES: usize = 64 * 1024;
/// How long a connection may take, with its name's resolution and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls at once: each has a socket and up to [`ANSWER_BYTES`]. Others wait; the wait counts to their timeout.
const CALLS: usize = 256;
/// Connections that are kept for the next call to the same host.
const IDLE_PER_HOST: usize = 2;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Outbound(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    guard: Guard,
    /// Created at the first call: they read the certificates of the host, and most servers of a test never call.
    elsewhere: OnceLock<reqwest::Client>,
    own_ports: OnceLock<reqwest::Client>,
    calls: Semaphore,
    /// Answers all calls instead of the network.
    outside: Option<Arc<dyn Outside>>,
}

/// The services that servers call for jobs. A simulation provides its own.
#[async_trait]
pub trait Outside: std::fmt::Debug + Send + Sync {
    /// Returns the status of the answer, or why there is none. The caller ends a call that takes too long.
    async fn call(&self, url: &str, body: &Bytes) -> Result<u16, String>;
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// For the whole call: the wait for a free place, all redirects, and the answer's body.
    pub(crate) timeout: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Host and port that answered, for messages.
    pub(crate) host: String,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The first 64 KiB.
    pub(crate) body: Bytes,
}

impl Answer {
    /// Returns the answer if its status is 2xx.
    pub(crate) fn succeeded(self) -> Result<Self, Error> {
        if self.status.is_success() {
            Ok(self)
        } else {
            Err(Error::Status { host: self.host, status: self.status.as_u16() })
        }
    }

    /// Returns the header `Retry-After`, if it is a number of seconds.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
    }
}

impl Outbound {
    /// `own` are the addresses at which this server listens.
    pub(crate) fn new(allow: Allow, own: Vec<SocketAddr>) -> Self {
        Self(Arc::new(Inner {
            guard: Guard { allow: Arc::new(allow), own: own.into() },
            elsewhere: OnceLock::new(),
            own_ports: OnceLock::new(),
            calls: Semaphore::new(CALLS),
            outside: None,
        }))
    }

    /// Sends all calls to `outside`, if it is set.
    #[must_use]
    pub(crate) fn within(self, outside: Option<Arc<dyn Outside>>) -> Self {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => Self(Arc::new(Inner { outside, ..inner })),
            Err(shared) => Self(shared),
        }
    }

    /// Sends a request and reads the answer, whatever its status is.
    pub(crate) async fn send(&self, request: Request) -> Result<Answer, Error> {
        let url = Url::parse(&request.url).map_err(|error| Error::BadUrl(error.to_string()))?;
        let (host, after) = (host_of(&url), request.timeout);
        let call = async {
            // The semaphore is never closed.
            let _place = self.0.calls.acquire().await;
            match &self.0.outside {
                Some(outside) => ask(outside.as_ref(), &url, &request).await,
                None => self.follow(url, request).await,
            }
        };
        tokio::time::timeout(after.0, call).await.unwrap_or(Err(Error::TimedOut { host, after }))
    }

    async fn follow(&self, mut url: Url, mut request: Request) -> Result<Answer, Error> {
        let first = url.clone();
        for _ in 0..=REDIRECTS {
            let response = self.one(&url, &request).await?;
            let Some(next) = target(&url, &response)? else {
                return read(&url, response, request.timeout).await;
            };
            if response.status() == StatusCode::SEE_OTHER {
                request.method = Method::GET;
                request.body = Bytes::new();
                request.headers.remove(CONTENT_TYPE);
                request.headers.remove(CONTENT_LENGTH);
            }
            if next.origin() != url.origin() {
                request.headers.remove(AUTHORIZATION);
                request.headers.remove(COOKIE);
            }
            url = next;
        }
        Err(Error::Redirects { host: host_of(&first), most: REDIRECTS })
    }

    async fn one(&self, url: &Url, request: &Request) -> Result<Response, Error> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Error::BadUrl(format!("`{}` is not http or https", url.scheme())));
        }
        self.0.guard.check(url)?;
        let client = self.client(url)?;
        let sending = client
            .request(request.method.clone(), url.clone())
            .headers(request.headers.clone())
            .body(request.body.clone())
            .send();
        sending.await.map_err(|error| Error::of(url, &error, request.timeout))
    }

    fn client(&self, url: &Url) -> Result<&reqwest::Client, Error> {
        let is_own_port = self.0.guard.is_own_port(url);
        let cell = if is_own_port { &self.0.own_ports } else { &self.0.elsewhere };
        if let Some(client) = cell.get() {
            return Ok(client);
        }
        let resolver = || CheckedResolver { guard: self.0.guard.clone(), is_own_port };
        let builder = || {
            reqwest::Client::builder()
                // Behind a proxy this server would not see the address that is connected to.
                .no_proxy()
                .redirect(reqwest::redirect::Policy::none())
                .dns_resolver(resolver())
                .connect_timeout(CONNECT_TIMEOUT)
                .pool_max_idle_per_host(IDLE_PER_HOST)
                .pool_idle_timeout(IDLE_TIMEOUT)
                .user_agent(concat!("downbeat/", env!("CARGO_PKG_VERSION")))
        };
        // A host without any certificate can still call plain HTTP.
        let client = builder().build().or_else(|_| builder().tls_certs_only([]).build());
        let client = client.map_err(|error| Error::BadUrl(format!("cannot set up TLS: {error}")))?;
        Ok(cell.get_or_init(|| client))
    }
}

async fn ask(outside: &dyn Outside, url: &Url, request: &Request) -> Result<Answer, Error> {
    let host = host_of(url);
    let answer = outside.call(url.as_str(), &request.body).await;
    let unreachable = |why| Error::Unreachable { host: host.clone(), why };
    let status = StatusCode::from_u16(answer.map_err(unreachable)?);
    let status = status.map_err(|error| Error::BadUrl(error.to_string()))?;
    Ok(Answer { host, status, headers: HeaderMap::new(), body: Bytes::new() })
}

/// Returns where a redirect points to. The fragment stays with the client.
fn target(url: &Url, response: &Response) -> Result<Option<Url>, Error> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(LOCATION) else { return Ok(None) };
    let next = location.to_str().ok().and_then(|location| url.join(location).ok());
    let wrong = || Error::BadUrl(format!("{} redirected to something that is not a URL", host_of(url)));
    next.map(Some).ok_or_else(wrong)
}

/// Reads the first part of the body, and closes the connection if there is more.
async fn read(url: &Url, mut response: Response, after: Span) -> Result<Answer, Error> {
    let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| Error::of(url, &error, after))? {
        let room = ANSWER_BYTES - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            break;
        }
    }
    Ok(Answer { host: host_of(url), status, headers, body: body.freeze() })
}
