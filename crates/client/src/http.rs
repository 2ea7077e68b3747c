//! Owns requests to servers: which server gets a request, its body, and when it is repeated.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use downbeat_api::request::{HTTP_PORT, Method, ROOT, Request};
use downbeat_api::{Event, EventList, List, Pagination, request};
use downbeat_core::backend::Params;
use downbeat_core::limits;
use futures_util::{Stream, StreamExt};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use crate::address::{is_local, url};
use crate::error::{Error, Result, is_other_protocol};
use crate::sse::Feed;

/// A server that does not accept a connection within this time is unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The slowest responses are plans of a million instances: seconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait for a server that responded before.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause before a read is repeated, unless the server asks for a longer one. A server needs seconds to restart.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The pause before a request is sent again whose connection broke: another server may respond at once.
const RESEND_PAUSE: Duration = Duration::from_millis(200);

/// Called with a server that does not respond, before the client waits for it.
pub(crate) type OnUnreachable = Arc<dyn Fn(&str) + Send + Sync>;

/// A client of one server, or of several that share a store: any of them may respond.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    servers: Arc<[Url]>,
    /// The server that responded last; if it fails, the others are tried.
    current: Arc<AtomicUsize>,
    cluster: Option<String>,
    /// Set if the client waits for servers that do not respond.
    on_unreachable: Option<OnUnreachable>,
}

/// The body of a request.
#[derive(Clone, Debug)]
pub enum Body {
    Empty,
    Json(String),
    /// A job definition as it was written, and the options of the run.
    Definition {
        text: String,
        params: Params,
        no_cache: bool,
    },
}

impl Body {
    /// Returns the text and its content type. JSON is valid YAML, so one type serves both and errors keep their line and
    /// column.
    fn encode(self) -> Option<(String, &'static str)> {
        match self {
            Body::Empty => None,
            Body::Json(text) => Some((text, "application/json")),
            Body::Definition { text, params, no_cache: false } if params.is_empty() => {
                Some((text, "application/yaml"))
            }
            Body::Definition { text, params, no_cache } => {
                let mut all = json!({"definition": text, "params": params});
                // Older servers refuse the field.
                if no_cache {
                    all["no_cache"] = json!(true);
                }
                Some((all.to_string(), "application/json"))
            }
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client. Each text may name several servers, separated by commas; the default is a server on this
    /// machine.
    pub fn new(servers: &[String], cluster: Option<String>) -> Result<Self> {
        let named = servers.iter().flat_map(|text| text.split(',')).map(str::trim);
        let mut urls: Vec<Url> = named.filter(|text| !text.is_empty()).map(url).collect::<Result<_, _>>()?;
        if urls.is_empty() {
            urls.push(url(&format!("127.0.0.1:{HTTP_PORT}"))?);
        }
        // Servers use plain HTTP: without this, reqwest reads the host's certificates and fails on a host without any.
        let mut builder =
            reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true).tls_certs_only([]);
        if urls.iter().all(is_local) {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| Error::Setup(error.to_string()))?;
        Ok(Self { http, servers: urls.into(), current: Arc::default(), cluster, on_unreachable: None })
    }

    pub fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// Returns the server that responded last.
    pub fn base(&self) -> &str {
        self.server().as_str().trim_end_matches('/')
    }

    fn server(&self) -> &Url {
        &self.servers[self.current.load(Ordering::Relaxed) % self.servers.len()]
    }

    fn try_next(&self) {
        self.current.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a client that waits up to a minute for a server to respond to reads, for callers that had a response
    /// before: the server restarts. It tries again every second, or later if a server asks for it with `Retry-After`.
    /// Before it waits, it calls `on_unreachable` with the server.
    pub fn waiting(&self, on_unreachable: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { on_unreachable: Some(Arc::new(on_unreachable)), ..self.clone() }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.on_unreachable.is_some()
    }

    /// Sends a request to one server after the other until one responds. Only for requests that may be repeated: reads,
    /// and deletions, which change nothing the second time.
    pub async fn ask<T: DeserializeOwned>(&self, request: Request<T>) -> Result<T> {
        self.repeat(async || {
            let response = self.fetch(|| self.build(&request).timeout(RESPONSE_TIMEOUT)).await?;
            let text = response.bytes().await.map_err(|error| Error::no_response(self.base(), &error))?;
            Ok(self.read(&text)?)
        })
        .await
    }

    /// Reads something; a client that waits repeats it until a server responds, or until the next try would be too late.
    async fn repeat<T>(&self, read: impl AsyncFn() -> Result<T, Failed>) -> Result<T> {
        let Some(on_unreachable) = &self.on_unreachable else { return Ok(read().await?) };
        let give_up_at = Instant::now() + PATIENCE;
        let mut reported = false;
        loop {
            let failed = match read().await {
                Ok(read) => return Ok(read),
                Err(failed) => failed,
            };
            let next = failed.next_try().and_then(|pause| Instant::now().checked_add(pause));
            let Some(next) = next.filter(|next| *next < give_up_at) else { return Err(failed.error) };
            if !std::mem::replace(&mut reported, true) {
                on_unreachable(self.base());
            }
            sleep_until(next).await;
        }
    }

    /// Sends a request that changes something. It is repeated only if that is safe: if no server was reached, or if an
    /// idempotency key makes the repetition return the first response.
    pub async fn send<T: DeserializeOwned>(
        &self,
        request: Request<T>,
        body: Body,
        idempotency_key: Option<&str>,
    ) -> Result<T> {
        let body = body.encode();
        let build = || {
            let mut built = self.build(&request).timeout(RESPONSE_TIMEOUT);
            if let Some(key) = idempotency_key {
                built = built.header("idempotency-key", key);
            }
            match &body {
                Some((text, kind)) => built.header(CONTENT_TYPE, *kind).body(text.clone()),
                None => built,
            }
        };
        let give_up_at = Instant::now() + PATIENCE;
        let mut broken = false;
        // Servers that could not be reached.
        let mut unreachable = 0;
        loop {
            let outcome = match build().send().await {
                Ok(response) if response.status().is_success() => response.bytes().await,
                Ok(response) if is_unavailable(&response) && unreachable + 1 < self.servers.len() => {
                    unreachable += 1;
                    self.try_next();
                    continue;
                }
                Ok(response) => return Err(Error::refused(self.base(), response).await),
                Err(error) => Err(error),
            };
            match outcome {
                Ok(text) => return self.read(&text),
                // No server received the request: another one may get it.
                Err(error) if error.is_connect() && unreachable + 1 < self.servers.len() => {
                    unreachable += 1;
                    self.try_next();
                }
                // The connection broke, and the request may have been executed: with a key it is safe to repeat it, also
                // while the server restarts.
                Err(error)
                    if idempotency_key.is_some()
                        && (broken || !error.is_connect())
                        && !is_other_protocol(&error)
                        && (!error.is_timeout() || self.servers.len() > 1)
                        && Instant::now() < give_up_at =>
                {
                    broken = true;
                    unreachable = 0;
                    self.try_next();
                    sleep(RESEND_PAUSE).await;
                }
                Err(error) => return Err(Error::no_response(self.base(), &error)),
            }
        }
    }

    /// Returns every row of a list, page by page.
    pub async fn all_pages<T: DeserializeOwned>(&self, request: Request<List<T>>) -> Result<Vec<T>> {
        let mut rows = Vec::new();
        let mut start = Start::default();
        loop {
            let page = self.page(request.clone(), limits::PAGE_MOST, &start).await?;
            let next = start.next(&page);
            rows.extend(page.data);
            match next {
                Some(next) => start = next,
                None => return Ok(rows),
            }
        }
    }

    /// Returns one page of a list.
    pub async fn page<T: DeserializeOwned>(
        &self,
        request: Request<List<T>>,
        limit: u32,
        start: &Start,
    ) -> Result<List<T>> {
        let request = request.with("limit", limit);
        let request = match start {
            Start::Offset(offset) => request.with("offset", offset),
            Start::Cursor(cursor) => request.with("cursor", cursor),
        };
        self.ask(request).await
    }

    /// Returns all events after this number.
    pub async fn all_events(&self, request: Request<EventList>, mut since: u64) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        loop {
            let page =
                request.clone().with("follow", 0).with("limit", limits::PAGE_MOST).with("since", since);
            let page = self.ask(page).await?;
            events.extend(page.data);
            since = page.pagination.next;
            if !page.pagination.has_more {
                return Ok(events);
            }
        }
    }

    /// Returns the number of the last event; 0 if there is none.
    pub async fn last_seq(&self) -> Result<u64> {
        Ok(last_seq(&self.ask(last_event()).await?))
    }

    /// Opens a stream of server-sent events that starts after `last`.
    pub async fn feed<T>(&self, request: &Request<T>, last: Option<&str>) -> Result<Feed> {
        let build = || {
            let built = self.build(request).header(ACCEPT, "text/event-stream");
            match last {
                Some(last) => built.header("last-event-id", last),
                None => built,
            }
        };
        let response = self.repeat(async || self.fetch(&build).await).await?;
        Ok(Feed::new(response, self.base().to_owned()))
    }

    pub async fn bytes<T>(
        &self,
        request: &Request<T>,
    ) -> Result<impl Stream<Item = Result<Bytes>> + Unpin + use<T>> {
        let response = self.fetch(|| self.build(request)).await?;
        let base = self.base().to_owned();
        Ok(response.bytes_stream().map(move |piece| piece.map_err(|error| Error::no_response(&base, &error))))
    }

    /// Returns the text of a path outside of the API: `/metrics`, `/healthz`, `/readyz`.
    pub async fn text(&self, path: &str) -> Result<String> {
        let build = || {
            let mut url = self.server().clone();
            url.set_path(path);
            self.http.get(url).timeout(RESPONSE_TIMEOUT)
        };
        let response = self.fetch(build).await?;
        response.text().await.map_err(|error| Error::no_response(self.base(), &error))
    }

    fn build<T>(&self, request: &Request<T>) -> RequestBuilder {
        let mut url = self.server().clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(ROOT).extend(request.segments());
        }
        let method = match request.method {
            Method::Get => reqwest::Method::GET,
            Method::Post => reqwest::Method::POST,
            Method::Put => reqwest::Method::PUT,
            Method::Patch => reqwest::Method::PATCH,
            Method::Delete => reqwest::Method::DELETE,
        };
        let agent = concat!("downbeat/", env!("CARGO_PKG_VERSION"));
        self.http.request(method, url).query(&request.query).header("user-agent", agent)
    }

    async fn fetch(&self, build: impl Fn() -> RequestBuilder) -> Result<Response, Failed> {
        let mut tries = 0;
        loop {
            tries += 1;
            let failed = match build().send().await {
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response) if is_unavailable(&response) => {
                    let retry_after = retry_after(response.headers());
                    Failed { error: Error::refused(self.base(), response).await, retry_after }
                }
                Ok(response) => return Err(Error::refused(self.base(), response).await.into()),
                Err(error) => Error::no_response(self.base(), &error).into(),
            };
            self.try_next();
            if tries >= self.servers.len() {
                return Err(failed);
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, text: &[u8]) -> Result<T> {
        // A response without content (204) is that of a request whose response is `()`.
        let text = if text.is_empty() { b"null" } else { text };
        serde_json::from_slice(text)
            .map_err(|error| Error::Unreadable { base: self.base().to_owned(), why: error.to_string() })
    }
}

/// Why a read failed, and when the server wants the next try.
struct Failed {
    error: Error,
    retry_after: Option<Duration>,
}

impl Failed {
    /// Returns after which pause the next try may succeed; none if it would fail too.
    fn next_try(&self) -> Option<Duration> {
        self.error.is_temporary().then(|| self.retry_after.unwrap_or_default().max(RETRY_PAUSE))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, retry_after: None }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

/// Returns the pause in `Retry-After`. Proxies may write a date instead of seconds: it is ignored.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// Where a page of a list starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    Offset(u64),
    Cursor(String),
}

impl Default for Start {
    /// Returns the start of the list.
    fn default() -> Self {
        Start::Offset(0)
    }
}

impl Start {
    /// Returns where the page after this one starts; none if it is the last one. Older servers have no cursors.
    pub fn next<T>(&self, page: &List<T>) -> Option<Self> {
        let Pagination { has_more, next, .. } = &page.pagination;
        match (next, self) {
            _ if !has_more => None,
            (Some(cursor), _) => Some(Start::Cursor(cursor.clone())),
            (None, Start::Offset(offset)) if !page.data.is_empty() => {
                Some(Start::Offset(offset + page.data.len() as u64))
            }
            (None, _) => None,
        }
    }
}

pub(crate) fn last_event() -> Request<EventList> {
    request::events().with("follow", 0).with("limit", 1)
}

pub(crate) fn last_seq(last_event: &EventList) -> u64 {
    // The last event itself may be gone.
    last_event.pagination.next
}

/// Returns whether the server runs but cannot work: it is stopping, or its store is unavailable.
fn is_unavailable(response: &Response) -> bool {
    response.status() == StatusCode::SERVICE_UNAVAILABLE
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn client(server: &str) -> Client {
        Client::new(&[server.to_owned()], None).unwrap()
    }

    #[test]
    fn ids_are_encoded_as_one_segment() {
        let request = client("127.0.0.1:1").build(&request::run("a/../b c")).build().unwrap();
        assert_eq!(request.url().as_str(), "http://127.0.0.1:1/api/v1/runs/a%2F..%2Fb%20c");
    }

    #[test]
    fn a_server_behind_a_path_keeps_it() {
        let request = client("http://proxy/downbeat/").build(&request::status()).build().unwrap();
        assert_eq!(request.url().as_str(), "http://proxy/downbeat/api/v1/status");
    }

    #[test]
    fn several_servers_are_named_with_commas_or_repeated() {
        let client = Client::new(&["a:1, http://b:2".to_owned(), "c:3".to_owned()], None).unwrap();
        let named: Vec<&str> = client.servers.iter().map(Url::as_str).collect();
        assert_eq!(named, ["http://a:1/", "http://b:2/", "http://c:3/"]);
        assert_eq!(client.base(), "http://a:1");
        (0..4).for_each(|_| client.try_next());
        assert_eq!(client.base(), "http://b:2");
    }

    /// Serves the numbers from 0 to 4, two on a page.
    async fn numbers(pagination: fn(u64) -> serde_json::Value) -> Vec<u64> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 4096];
                let read = stream.read(&mut request).await.unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..read]).into_owned();
                let start = request.split("offset=").nth(1).or(request.split("cursor=from-").nth(1));
                let start: u64 = start.unwrap().split([' ', '&']).next().unwrap().parse().unwrap();
                let rows: Vec<u64> = (start..(start + 2).min(5)).collect();
                let body = json!({"data": rows, "pagination": pagination(start)}).to_string();
                let head =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                let _ = stream.write_all((head + &body).as_bytes()).await;
            }
        });
        let rows = client(&address).all_pages::<u64>(request::nodes().reading()).await.unwrap();
        served.abort();
        rows
    }

    #[tokio::test]
    async fn a_list_of_several_pages_is_read_to_its_end() {
        let pagination = |start| {
            let next = (start + 2 < 5).then(|| format!("from-{}", start + 2));
            json!({"limit": 2, "offset": 0, "total": null, "has_more": next.is_some(), "next": next})
        };
        assert_eq!(numbers(pagination).await, [0, 1, 2, 3, 4]);
    }

    #[tokio::test]
    async fn a_list_of_a_server_without_cursors_is_read_to_its_end() {
        let pagination = |start| json!({"limit": 2, "offset": start, "total": 5, "has_more": start + 2 < 5});
        assert_eq!(numbers(pagination).await, [0, 1, 2, 3, 4]);
    }

    /// The first bytes of a gRPC server: its HTTP/2 settings.
    const GREETING: &[u8] = &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 5, 0, 0, 64, 0];

    #[tokio::test]
    async fn the_port_of_agents_is_recognised_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = tokio::spawn(async move {
            let mut connections = 0_u32;
            while let Ok((mut stream, _)) = listener.accept().await {
                connections += 1;
                // One server sends at once, one waits for the request: both occur.
                if connections.is_multiple_of(2) {
                    let _ = stream.read(&mut [0; 16]).await;
                }
                let _ = stream.write_all(GREETING).await;
                let _ = stream.shutdown().await;
            }
        });
        let client = client(&address);
        for attempt in 0..4 {
            let submitted = client.send(request::submit(), Body::Empty, Some("key"));
            let error =
                tokio::time::timeout(PATIENCE / 2, submitted).await.expect("it is final").unwrap_err();
            assert!(error.is_unreachable());
            assert!(error.to_string().contains("is this the agents' port?"), "{attempt}: {error}");
        }
        for client in [client.clone(), client.waiting(|base| panic!("waits for {base}"))] {
            let error = client.ask(request::runs()).await.unwrap_err();
            assert!(error.to_string().contains("is this the agents' port?"), "{error}");
        }
        served.abort();
    }

    #[tokio::test]
    async fn a_client_that_waits_repeats_a_read_until_the_server_is_available() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = tokio::spawn(async move {
            let problem = "503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0";
            for head in [problem, "200 OK\r\ncontent-length: 2"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 4096]).await;
                let response = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n42");
                let _ = stream.write_all(response.as_bytes()).await;
            }
        });
        let (waits, waited) = std::sync::mpsc::channel();
        let client = client(&address);
        let waiting = client.waiting(move |base| waits.send(base.to_owned()).unwrap());
        assert_eq!(waiting.ask(request::status().reading::<u32>()).await.unwrap(), 42);
        assert_eq!(waited.try_iter().collect::<Vec<_>>(), [client.base()], "it says so once");
        served.await.unwrap();
    }

    #[test]
    fn the_pause_before_the_next_try_is_a_second_or_what_the_server_asks_for() {
        let unreachable = || Error::Unreachable { base: "http://a".to_owned(), why: "refused".to_owned() };
        let foreign = |status| Error::Foreign { base: "http://a".to_owned(), status };
        let other = || Error::OtherProtocol { base: "http://a".to_owned() };
        let next = |error: Error, seconds: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, seconds.parse().unwrap())]);
            Failed { error, retry_after: retry_after(&headers) }.next_try().map(|pause| pause.as_secs())
        };
        assert_eq!(Failed::from(unreachable()).next_try(), Some(RETRY_PAUSE));
        for (asked, pause) in
            [("7", 7), (" 7 ", 7), ("0", 1), ("Wed, 21 Oct 2026 07:28:00 GMT", 1), ("-1", 1)]
        {
            assert_eq!(next(foreign(StatusCode::SERVICE_UNAVAILABLE), asked), Some(pause), "{asked}");
        }
        assert_eq!(next(foreign(StatusCode::NOT_FOUND), "7"), None);
        assert_eq!(next(other(), "7"), None);
    }
}
