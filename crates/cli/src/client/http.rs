//! Owns requests to the server: addresses, encoding, and what it means when nobody answers.

use std::error::Error as _;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::de::DeserializeOwned;
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

/// A client of one server.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: Url,
    cluster: Option<String>,
}

/// What is sent along.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Empty,
    /// A job definition as it was written, and the name of the file that it stands in.
    Definition {
        text: String,
        file: Option<String>,
    },
}

impl Client {
    pub(crate) fn new(global: &Global) -> Result<Self, Failure> {
        let Global { server, cluster, .. } = global.clone().or_environment();
        Self::to(server.last().map_or(DEFAULT_SERVER, String::as_str), cluster)
    }

    fn to(server: &str, cluster: Option<String>) -> Result<Self, Failure> {
        let text = if server.contains("://") { server.to_owned() } else { format!("http://{server}") };
        let wrong = |why: &str| {
            Failure::bad_input(format!("`{server}` is no server's URL: {why}; write http://HOST:PORT"))
        };
        let base = Url::parse(&text).map_err(|error| wrong(&error.to_string()))?;
        if base.scheme() != "http" {
            return Err(wrong(&format!("{} is not spoken here", base.scheme())));
        }
        let host = base.host_str().ok_or_else(|| wrong("it names no host"))?;
        let mut builder = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
        // A proxy that is set up for the outside cannot reach this machine's own ports.
        if host == "localhost" || host.starts_with("127.") || host == "[::1]" {
            builder = builder.no_proxy();
        }
        let http =
            builder.build().map_err(|error| Failure::bug(format!("cannot set up the client: {error}")))?;
        Ok(Self { http, base, cluster })
    }

    /// The cluster that was named, if one was.
    pub(crate) fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    pub(crate) fn base(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<T, Failure> {
        let request = self.request(Method::GET, path).query(query).timeout(ANSWER_TIMEOUT);
        self.decoded(self.sent(request).await?).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        body: Body,
        idempotency_key: Option<&str>,
    ) -> Result<T, Failure> {
        let mut request = self.request(Method::POST, path).query(query).timeout(ANSWER_TIMEOUT);
        let mut origin = None;
        if let Some(key) = idempotency_key {
            request = request.header("idempotency-key", key);
        }
        if let Body::Definition { text, file } = body {
            // JSON is YAML too, so one kind serves both and errors keep their line and column.
            request = request.header(CONTENT_TYPE, "application/yaml").body(text);
            origin = file;
        }
        let give_up_at = Instant::now() + PATIENCE;
        let mut broken = false;
        loop {
            let attempt = request.try_clone().ok_or_else(|| Failure::bug("a request cannot be repeated"))?;
            let answer = match attempt.send().await {
                Ok(response) if !response.status().is_success() => {
                    return Err(problem::failure(response, self.base(), origin.as_deref()).await);
                }
                Ok(response) => response.bytes().await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(text) => return self.read(&text),
                // The connection broke, and nobody knows whether the request was carried out: with a key it is safe to
                // say it again, also while the server is starting again.
                Err(error)
                    if idempotency_key.is_some()
                        && (broken || !error.is_connect())
                        && !error.is_timeout()
                        && Instant::now() < give_up_at =>
                {
                    broken = true;
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

    /// A stream of server-sent events, from after `last` on.
    pub(crate) async fn feed(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        last: Option<&str>,
    ) -> Result<Feed, Failure> {
        let mut request = self.request(Method::GET, path).query(query).header(ACCEPT, "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = self.sent(request).await?;
        Ok(Feed::new(response, self.base().to_owned()))
    }

    /// Segments are encoded one by one: an id is data, not a path.
    fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["api", "v1"]).extend(path);
        }
        self.http.request(method, url).header("user-agent", concat!("downbeat/", env!("CARGO_PKG_VERSION")))
    }

    async fn sent(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| unreachable(self.base(), &error))?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(problem::failure(response, self.base(), None).await)
        }
    }

    async fn decoded<T: DeserializeOwned>(&self, response: Response) -> Result<T, Failure> {
        let text = response.bytes().await.map_err(|error| unreachable(self.base(), &error))?;
        self.read(&text)
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

/// Nobody answered, or stopped in the middle.
pub(super) fn unreachable(base: &str, error: &reqwest::Error) -> Failure {
    let why = if error.is_timeout() { "no answer in time".to_owned() } else { root_cause(error) };
    let hint = "is `downbeat server` or `downbeat dev` running? (--server or DOWNBEAT_SERVER names another)";
    Failure::new(Code::Unreachable, format!("cannot reach {base}: {why}; {hint}"))
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
        let client = Client::to("127.0.0.1:1", None).unwrap();
        let request = client.request(Method::GET, &["runs", "a/../b c"]).build().unwrap();
        assert_eq!(request.url().as_str(), "http://127.0.0.1:1/api/v1/runs/a%2F..%2Fb%20c");
    }

    #[test]
    fn a_server_behind_a_path_keeps_it() {
        let client = Client::to("http://proxy/downbeat/", None).unwrap();
        let request = client.request(Method::GET, &["status"]).build().unwrap();
        assert_eq!(request.url().as_str(), "http://proxy/downbeat/api/v1/status");
    }

    #[test]
    fn what_is_no_url_is_bad_input() {
        for server in ["https://host", "http://", "host:port:x"] {
            assert_eq!(Client::to(server, None).unwrap_err().code, Code::BadInput, "{server}");
        }
    }
}
