//! Owns the server under test: a process of its own on a store of its own, gone when the load is over.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::exit::{Code, Failure};

/// A server starts within this, or something is wrong.
const START: Duration = Duration::from_secs(30);
/// A load that makes no progress for this long is given up.
pub(super) const STUCK: Duration = Duration::from_secs(60);

#[derive(Debug, Deserialize)]
struct Ready {
    grpc: String,
    url: String,
}

/// A running server and how to reach it.
#[derive(Debug)]
pub(super) struct Site {
    child: Child,
    pub grpc: String,
    url: String,
    pub store: String,
    http: reqwest::Client,
    directory: TempDir,
}

impl Site {
    /// `store`: `sqlite` for a fresh file, or any location that `downbeat server --store` takes.
    pub(super) async fn start(store: &str) -> Result<Self, Failure> {
        let directory = tempfile::tempdir().map_err(|error| cannot("make a directory", &error))?;
        let location = match store {
            "sqlite" => format!("sqlite:{}", directory.path().join("bench.db").display()),
            other => other.to_owned(),
        };
        let ready_file = directory.path().join("ready");
        let program = std::env::current_exe().map_err(|error| cannot("find this program", &error))?;
        let log = std::fs::File::create(directory.path().join("server.log"))
            .map_err(|error| cannot("log", &error))?;
        let child = Command::new(program)
            .args([
                "server",
                "--http",
                "127.0.0.1:0",
                "--grpc",
                "127.0.0.1:0",
                "--log-level",
                "warn",
                "--store",
            ])
            .arg(&location)
            .arg("--ready-file")
            .arg(&ready_file)
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| cannot("start a server", &error))?;
        let kind = location.split(':').next().unwrap_or_default().to_owned();
        let mut site = Self {
            child,
            grpc: String::new(),
            url: String::new(),
            store: kind,
            http: reqwest::Client::new(),
            directory,
        };
        let ready = site.wait_until_ready(&ready_file).await?;
        site.grpc = ready.grpc;
        site.url = ready.url;
        Ok(site)
    }

    async fn wait_until_ready(&mut self, file: &PathBuf) -> Result<Ready, Failure> {
        let begun = Instant::now();
        loop {
            if let Ok(text) = std::fs::read_to_string(file) {
                return serde_json::from_str(&text)
                    .map_err(|error| cannot("read the server's addresses", &error));
            }
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() || begun.elapsed() > START {
                let log =
                    std::fs::read_to_string(self.directory.path().join("server.log")).unwrap_or_default();
                return Err(Failure::new(
                    Code::Unreachable,
                    format!("the server did not start: {}", log.trim()),
                ));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(super) fn data(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Submits a definition; answers the run's id.
    pub(super) async fn submit(&self, definition: &Value) -> Result<String, Failure> {
        let sent = self.http.post(format!("{}/api/v1/runs", self.url)).json(definition).send().await;
        let response = sent.map_err(|error| cannot("submit", &error))?;
        let status = response.status();
        let body: Value = response.json().await.map_err(|error| cannot("read an answer", &error))?;
        match body["id"].as_str() {
            Some(id) if status.is_success() => Ok(id.to_owned()),
            _ => Err(Failure::new(Code::Refused, format!("a run was not accepted: {body}"))),
        }
    }

    /// The live stream of all events from now on.
    pub(super) async fn events(&self) -> Result<reqwest::Response, Failure> {
        self.http
            .get(format!("{}/api/v1/events", self.url))
            .send()
            .await
            .map_err(|error| cannot("follow events", &error))
    }

    /// One figure of `/metrics`, its name with labels as it is printed.
    pub(super) async fn metric(&self, name: &str) -> Result<f64, Failure> {
        let text = async { self.http.get(format!("{}/metrics", self.url)).send().await?.text().await };
        let text = text.await.map_err(|error| cannot("read metrics", &error))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0))
    }

    /// Waits until a figure has reached a value.
    pub(super) async fn reached(&self, name: &str, value: f64, every: Duration) -> Result<(), Failure> {
        let (mut last, mut since) = (-1.0, Instant::now());
        loop {
            let now = self.metric(name).await?;
            if now >= value {
                return Ok(());
            }
            if now > last {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() > STUCK {
                return Err(Failure::bug(format!(
                    "`{name}` stands at {now} of {value} for {} s",
                    STUCK.as_secs()
                )));
            }
            tokio::time::sleep(every).await;
        }
    }

    pub(super) fn rss_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
    }

    /// User and system time that the server used so far.
    pub(super) fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // After the name in parentheses, which may hold blanks: fields 14 and 15 of the whole line.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks: f64 =
            rest.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
        ticks / 100.0
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // Its data goes with it: nothing is worth a graceful stop.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn cannot(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Code::Unreachable, format!("cannot {what}: {error}"))
}
