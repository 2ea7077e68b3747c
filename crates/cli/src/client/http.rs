//! Owns requests to the server: addresses, encoding, and what it means when nobody answers.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use downbeat_api::List;
use downbeat_core::backend::Params;
use downbeat_core::limits;
use downbeat_server::Settings;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::problem;
use super::sse::Feed;
use crate::args::Global;
use crate::exit::{Code, Failure};
use crate::out::Out;

const DEFAULT_SERVER: &str = "http://127.0.0.1:4680";
/// A server that does not even accept within this is taken as away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The slowest answers are plans of a million instances: seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a server that is away is waited for by those who have spoken to it before, and between two tries.
const PATIENCE: Duration = Duration::from_secs(60);
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// A client of one server, or of several that share a store: whichever answers.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    servers: Arc<[Url]>,
    /// The one that answered last; the others are tried when it does not.
    current: Arc<AtomicUsize>,
    cluster: Option<String>,
}

/// What is sent along.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Empty,
    Json(Value),
    /// A job definition as it was written, the name of the file that it stands in, and what else is said of the run.
    Definition {
        text: String,
        file: Option<String>,
        params: Params,
        no_cache: bool,
    },
}

impl Client {
    pub(crate) fn new(global: &Global) -> Result<Self, Failure> {
        let Global { server, cluster, .. } = global.clone().or_environment();
        Self::to(&server, cluster)
    }

    /// Each may name several, with commas between them.
    fn to(servers: &[String], cluster: Option<String>) -> Result<Self, Failure> {
        let named = servers.iter().flat_map(|text| text.split(',')).map(str::trim);
        let mut urls: Vec<Url> = named.filter(|text| !text.is_empty()).map(url).collect::<Result<_, _>>()?;
        if urls.is_empty() {
            urls.push(url(DEFAULT_SERVER)?);
        }
        // Servers speak plain HTTP: without this the host's certificates are read, and a host without any is an error.
        let mut builder =
            reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true).tls_certs_only([]);
        // A proxy that is set up for the outside cannot reach this machine's own ports.
        if urls.iter().all(is_local) {
            builder = builder.no_proxy();
        }
        let http =
            builder.build().map_err(|error| Failure::bug(format!("cannot set up the client: {error}")))?;
        Ok(Self { http, servers: urls.into(), current: Arc::default(), cluster })
    }

    /// The cluster that was named, if one was.
    pub(crate) fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// The server that answered last.
    pub(crate) fn base(&self) -> &str {
        self.server().as_str().trim_end_matches('/')
    }

    fn server(&self) -> &Url {
        &self.servers[self.current.load(Ordering::Relaxed) % self.servers.len()]
    }

    fn try_next(&self) {
        self.current.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<T, Failure> {
        let response =
            self.fetched(|| self.request(Method::GET, path).query(query).timeout(ANSWER_TIMEOUT)).await?;
        let text = response.bytes().await.map_err(|error| unreachable(self.base(), &error))?;
        self.read(&text)
    }

    /// For what may be asked for twice: the second time changes nothing.
    pub(crate) async fn delete<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<T, Failure> {
        let response =
            self.fetched(|| self.request(Method::DELETE, path).query(query).timeout(ANSWER_TIMEOUT)).await?;
        let text = response.bytes().await.map_err(|error| unreachable(self.base(), &error))?;
        self.read(&text)
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        body: Body,
        idempotency_key: Option<&str>,
    ) -> Result<T, Failure> {
        // JSON is YAML too, so one kind serves both and errors keep their line and column.
        let (text, kind, origin) = match body {
            Body::Empty => (None, "", None),
            Body::Json(value) => (Some(value.to_string()), "application/json", None),
            Body::Definition { text, file, params, no_cache: false } if params.is_empty() => {
                (Some(text), "application/yaml", file)
            }
            Body::Definition { text, file, params, no_cache } => {
                let mut all = json!({"definition": text, "params": params});
                // A server from before knows no such field.
                if no_cache {
                    all["no_cache"] = json!(true);
                }
                (Some(all.to_string()), "application/json", file)
            }
        };
        let request = || {
            let mut request = self.request(Method::POST, path).query(query).timeout(ANSWER_TIMEOUT);
            if let Some(key) = idempotency_key {
                request = request.header("idempotency-key", key);
            }
            match &text {
                Some(text) => request.header(CONTENT_TYPE, kind).body(text.clone()),
                None => request,
            }
        };
        let give_up_at = Instant::now() + PATIENCE;
        let mut broken = false;
        // Servers that were not even reached.
        let mut away = 0;
        loop {
            let answer = match request().send().await {
                Ok(response) if response.status().is_success() => response.bytes().await,
                Ok(response) if is_away(&response) && away + 1 < self.servers.len() => {
                    away += 1;
                    self.try_next();
                    continue;
                }
                Ok(response) => return Err(problem::failure(response, self.base(), origin.as_deref()).await),
                Err(error) => Err(error),
            };
            match answer {
                Ok(text) => return self.read(&text),
                // Nothing was asked: another server may be.
                Err(error) if error.is_connect() && away + 1 < self.servers.len() => {
                    away += 1;
                    self.try_next();
                }
                // The connection broke, and nobody knows whether the request was carried out: with a key it is safe to
                // say it again, also while the server is starting again.
                Err(error)
                    if idempotency_key.is_some()
                        && (broken || !error.is_connect())
                        && !is_other_protocol(&error)
                        && (!error.is_timeout() || self.servers.len() > 1)
                        && Instant::now() < give_up_at =>
                {
                    broken = true;
                    away = 0;
                    self.try_next();
                    sleep(RETRY_PAUSE).await;
                }
                Err(error) => return Err(unreachable(self.base(), &error)),
            }
        }
    }

    /// Asks until the server answers, for a while: for those who have spoken to it before.
    pub(crate) async fn get_patiently<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        out: Out,
    ) -> Result<T, Failure> {
        let give_up_at = Instant::now() + PATIENCE;
        let mut told = false;
        loop {
            match self.get(path, query).await {
                Err(failure) if failure.code == Code::Unreachable && Instant::now() < give_up_at => {
                    if !std::mem::replace(&mut told, true) {
                        out.note(&format!("{} is away; waiting for it", self.base()));
                    }
                    sleep(RETRY_PAUSE).await;
                }
                other => return other,
            }
        }
    }

    /// Every row of a list, page by page.
    pub(crate) async fn all_pages<T: DeserializeOwned>(&self, path: &[&str]) -> Result<Vec<T>, Failure> {
        let mut rows = Vec::new();
        loop {
            let page = self.page(path, rows.len()).await?;
            let is_last = !page.pagination.has_more || page.data.is_empty();
            rows.extend(page.data);
            if is_last {
                return Ok(rows);
            }
        }
    }

    /// The rows of a list from this one on, as many as one answer holds.
    pub(crate) async fn page<T: DeserializeOwned>(
        &self,
        path: &[&str],
        offset: usize,
    ) -> Result<List<T>, Failure> {
        let query = [("limit", limits::PAGE_MOST.to_string()), ("offset", offset.to_string())];
        self.get(path, &query).await
    }

    /// A stream of server-sent events, from after `last` on.
    pub(crate) async fn feed(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        last: Option<&str>,
    ) -> Result<Feed, Failure> {
        let request = || {
            let request = self.request(Method::GET, path).query(query).header(ACCEPT, "text/event-stream");
            match last {
                Some(last) => request.header("last-event-id", last),
                None => request,
            }
        };
        let response = self.fetched(request).await?;
        Ok(Feed::new(response, self.base().to_owned()))
    }

    /// Segments are encoded one by one: an id is data, not a path.
    fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.server().clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["api", "v1"]).extend(path);
        }
        self.http.request(method, url).header("user-agent", concat!("downbeat/", env!("CARGO_PKG_VERSION")))
    }

    /// Asks one server after the other until one answers. For questions, which may be asked twice.
    async fn fetched(&self, request: impl Fn() -> RequestBuilder) -> Result<Response, Failure> {
        let mut tries = 0;
        loop {
            tries += 1;
            let failure = match request().send().await {
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response) if is_away(&response) => problem::failure(response, self.base(), None).await,
                Ok(response) => return Err(problem::failure(response, self.base(), None).await),
                Err(error) => unreachable(self.base(), &error),
            };
            self.try_next();
            if tries >= self.servers.len() {
                return Err(failure);
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, text: &[u8]) -> Result<T, Failure> {
        serde_json::from_slice(text).map_err(|error| {
            Failure::bug(format!(
                "{} answered something that this downbeat cannot read: {error}; are both of one version?",
                self.base()
            ))
        })
    }
}

/// It lives, and cannot do its work: it stops, or its store is away.
fn is_away(response: &Response) -> bool {
    response.status() == StatusCode::SERVICE_UNAVAILABLE
}

/// A URL, or HOST or HOST:PORT. Only a URL may stand for HTTP's own port: a proxy listens there.
fn url(server: &str) -> Result<Url, Failure> {
    let is_url = server.contains("://");
    let text = if is_url { server.to_owned() } else { format!("http://{server}") };
    let wrong = |why: &str| {
        Failure::bad_input(format!("`{server}` is not a server's URL: {why}; write http://HOST:PORT"))
    };
    let mut url = Url::parse(&text).map_err(|error| wrong(&error.to_string()))?;
    if url.scheme() == "https" {
        return Err(wrong("servers do not speak TLS in this version"));
    }
    if url.scheme() != "http" {
        return Err(wrong(&format!("`{}` is not http", url.scheme())));
    }
    if url.host_str().is_none() {
        return Err(wrong("it names no host"));
    }
    if !is_url && !names_port(server) {
        let _ = url.set_port(Some(Settings::HTTP_PORT));
    }
    Ok(url)
}

/// Whether HOST:PORT has its port: `[::1]` has not.
fn names_port(server: &str) -> bool {
    let authority = server.split('/').next().unwrap_or_default();
    authority.rsplit(']').next().unwrap_or_default().contains(':')
}

fn is_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    host == "localhost" || host.starts_with("127.") || host == "[::1]"
}

/// Nobody answered, or stopped in the middle.
pub(super) fn unreachable(base: &str, error: &reqwest::Error) -> Failure {
    if is_other_protocol(error) {
        let message = format!(
            "{base} does not answer in HTTP/1: is this the agents' port? REST is on {} unless the server says otherwise",
            Settings::HTTP_PORT
        );
        return Failure::new(Code::Unreachable, message);
    }
    let why = if error.is_timeout() { "no answer in time".to_owned() } else { root_cause(error) };
    let no_port = Url::parse(base).is_ok_and(|url| url.port().is_none());
    let port = if no_port {
        format!("servers listen on port {}, and the URL names none; ", Settings::HTTP_PORT)
    } else {
        String::new()
    };
    let hint = "is `downbeat server` or `downbeat dev` running? (--server or DOWNBEAT_SERVER names another)";
    Failure::new(Code::Unreachable, format!("cannot reach {base}: {why}; {port}{hint}"))
}

/// Whether something answered that is not HTTP/1. A gRPC server greets with a frame of HTTP/2, which arrives before the
/// request was sent, or where the status line should be. Trying again changes nothing.
fn is_other_protocol(error: &reqwest::Error) -> bool {
    const SIGNS: [&str; 3] = [
        "invalid HTTP version parsed",
        "invalid HTTP status-code parsed",
        "received unexpected message from connection",
    ];
    let mut cause: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if SIGNS.iter().any(|sign| text.contains(sign)) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The system's own word for it, which is the last in the chain.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause = error.source();
    let mut last = error.to_string();
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::ConnectionRefused
        {
            return "connection refused".to_owned();
        }
        last = error.to_string();
        cause = error.source();
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_encoded_as_one_segment() {
        let client = Client::to(&["127.0.0.1:1".to_owned()], None).unwrap();
        let request = client.request(Method::GET, &["runs", "a/../b c"]).build().unwrap();
        assert_eq!(request.url().as_str(), "http://127.0.0.1:1/api/v1/runs/a%2F..%2Fb%20c");
    }

    #[test]
    fn a_server_behind_a_path_keeps_it() {
        let client = Client::to(&["http://proxy/downbeat/".to_owned()], None).unwrap();
        let request = client.request(Method::GET, &["status"]).build().unwrap();
        assert_eq!(request.url().as_str(), "http://proxy/downbeat/api/v1/status");
    }

    #[test]
    fn several_servers_are_named_with_commas_or_repeated() {
        let client = Client::to(&["a:1, http://b:2".to_owned(), "c:3".to_owned()], None).unwrap();
        let named: Vec<&str> = client.servers.iter().map(Url::as_str).collect();
        assert_eq!(named, ["http://a:1/", "http://b:2/", "http://c:3/"]);
        assert_eq!(client.base(), "http://a:1");
        (0..4).for_each(|_| client.try_next());
        assert_eq!(client.base(), "http://b:2");
    }

    #[test]
    fn a_host_without_a_port_is_asked_on_the_servers_own() {
        for (server, url) in [
            ("10.0.0.1", "http://10.0.0.1:4680/"),
            ("db.example", "http://db.example:4680/"),
            ("[::1]", "http://[::1]:4680/"),
            ("[::1]:5000", "http://[::1]:5000/"),
            ("host:80", "http://host/"),
            ("host:4680", "http://host:4680/"),
            ("http://proxy.example", "http://proxy.example/"),
        ] {
            assert_eq!(self::url(server).unwrap().as_str(), url, "{server}");
        }
    }

    #[tokio::test]
    async fn a_list_of_several_pages_is_read_to_its_end() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 4096];
                let read = stream.read(&mut request).await.unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..read]).into_owned();
                let offset = request.split("offset=").nth(1).unwrap_or("0");
                let offset: u64 = offset.split([' ', '&']).next().unwrap().parse().unwrap();
                let pagination =
                    json!({"limit": 2, "offset": offset, "total": 5, "has_more": offset + 2 < 5});
                let rows: Vec<u64> = (offset..(offset + 2).min(5)).collect();
                let body = json!({"data": rows, "pagination": pagination}).to_string();
                let head =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                let _ = stream.write_all((head + &body).as_bytes()).await;
            }
        });
        let client = Client::to(&[address], None).unwrap();
        assert_eq!(client.all_pages::<u64>(&["nodes"]).await.unwrap(), [0, 1, 2, 3, 4]);
        served.abort();
    }

    /// The first bytes of a gRPC server: its settings, in HTTP/2.
    const GREETING: &[u8] = &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 5, 0, 0, 64, 0];

    #[tokio::test]
    async fn the_port_of_agents_is_recognised_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = tokio::spawn(async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let mut connections = 0_u32;
            while let Ok((mut stream, _)) = listener.accept().await {
                connections += 1;
                // One greets at once, one waits for the request: both have been seen.
                if connections.is_multiple_of(2) {
                    let _ = stream.read(&mut [0; 16]).await;
                }
                let _ = stream.write_all(GREETING).await;
                let _ = stream.shutdown().await;
            }
        });
        let client = Client::to(&[address], None).unwrap();
        for attempt in 0..4 {
            let submitted = client.post::<Value>(&["runs"], &[], Body::Empty, Some("key"));
            let failure =
                tokio::time::timeout(PATIENCE / 2, submitted).await.expect("it is final").unwrap_err();
            assert_eq!(failure.code, Code::Unreachable);
            assert!(failure.message.contains("is this the agents' port?"), "{attempt}: {}", failure.message);
        }
        let failure = client.get::<Value>(&["runs"], &[]).await.unwrap_err();
        assert!(failure.message.contains("is this the agents' port?"), "{}", failure.message);
        served.abort();
    }

    #[test]
    fn what_is_no_url_is_bad_input() {
        for server in ["https://host", "http://", "host:port:x"] {
            assert_eq!(Client::to(&[server.to_owned()], None).unwrap_err().code, Code::BadInput, "{server}");
        }
    }
}
