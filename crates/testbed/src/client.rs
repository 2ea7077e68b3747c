//! Sends requests to servers over REST: to one of them, or to any that responds.

use std::time::Duration;

use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(4);

/// A client of several servers.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    /// `http://host:port` of each server.
    pub servers: Vec<String>,
}

/// A response of a server.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub retry_after: Option<String>,
    pub body: Value,
}

impl Client {
    pub fn new(servers: Vec<String>) -> Self {
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
        Self { http, servers }
    }

    async fn answer(request: reqwest::RequestBuilder) -> Option<Answer> {
        let response = request.timeout(TIMEOUT).send().await.ok()?;
        let status = response.status().as_u16();
        let retry_after =
            response.headers().get("retry-after").map(|value| value.to_str().unwrap().to_owned());
        let text = response.text().await.ok()?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Some(Answer { status, retry_after, body })
    }

    /// Requests a path. Returns nothing if the server does not respond.
    pub async fn ask(&self, server: usize, path: &str) -> Option<Answer> {
        Self::answer(self.http.get(format!("{}{path}", self.servers[server]))).await
    }

    /// Requests a path of the API. Returns nothing if the server is unreachable or returns an error.
    pub async fn get(&self, server: usize, path: &str) -> Option<Value> {
        let answer = self.ask(server, &format!("/api/v1/{path}")).await?;
        (answer.status < 300).then_some(answer.body)
    }

    /// Requests a path of the API from the first server that responds, starting with `first`.
    pub async fn get_any(&self, first: usize, path: &str) -> Option<Value> {
        for offset in 0..self.servers.len() {
            if let Some(value) = self.get((first + offset) % self.servers.len(), path).await {
                return Some(value);
            }
        }
        None
    }

    /// Posts to a path of the API, optionally with an idempotency key.
    pub async fn post(&self, server: usize, path: &str, body: &Value, key: Option<&str>) -> Option<Answer> {
        let mut request = self.http.post(format!("{}/api/v1/{path}", self.servers[server])).json(body);
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        Self::answer(request).await
    }

    /// Puts to a path of the API.
    pub async fn put(&self, server: usize, path: &str, body: &Value) -> Option<Answer> {
        Self::answer(self.http.put(format!("{}/api/v1/{path}", self.servers[server])).json(body)).await
    }

    /// Sends a DELETE to the first server that responds, starting with `first`.
    pub async fn delete(&self, first: usize, path: &str) -> Option<Answer> {
        for offset in 0..self.servers.len() {
            let server = &self.servers[(first + offset) % self.servers.len()];
            if let Some(answer) = Self::answer(self.http.delete(format!("{server}/api/v1/{path}"))).await
                && answer.status < 500
            {
                return Some(answer);
            }
        }
        None
    }

    pub async fn list(&self, server: usize, path: &str) -> Option<Vec<Value>> {
        let mut all: Vec<Value> = Vec::new();
        let separator = if path.contains('?') { '&' } else { '?' };
        let mut start = String::new();
        loop {
            let page = self.get(server, &format!("{path}{separator}limit=1000{start}")).await?;
            all.extend(page["data"].as_array()?.clone());
            match page["pagination"]["next"].as_str() {
                Some(next) => start = format!("&cursor={next}"),
                None => return Some(all),
            }
        }
    }

    /// Returns the whole event feed of a server.
    pub async fn events(&self, server: usize) -> Option<Vec<Value>> {
        let mut all: Vec<Value> = Vec::new();
        let mut since = 0;
        loop {
            let page = self.get(server, &format!("events?follow=0&limit=1000&since={since}")).await?;
            all.extend(page["data"].as_array()?.clone());
            since = page["pagination"]["next"].as_u64()?;
            if page["pagination"]["has_more"] != true {
                return Some(all);
            }
        }
    }

    /// Opens the stream of events after this number.
    pub async fn stream(&self, server: usize, last: u64) -> Option<reqwest::Response> {
        let url = format!("{}/api/v1/events?since=0", self.servers[server]);
        let request = self.http.get(url).header("Last-Event-ID", last.to_string()).send();
        tokio::time::timeout(TIMEOUT, request).await.ok()?.ok()
    }
}
