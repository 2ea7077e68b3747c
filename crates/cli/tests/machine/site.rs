//! Owns a server on this host and its machines. Jobs are submitted by the command line.

use std::fs;

use downbeat_testbed::{Server, until};
use serde_json::Value;

use crate::host::Host;

pub(crate) struct Site {
    // First, so that their agents do not outlive the server.
    pub(crate) hosts: Vec<Host>,
    server: Server,
    directory: tempfile::TempDir,
}

impl Site {
    /// A server and machines with agents, all online.
    pub(crate) fn of(count: usize) -> Self {
        Self::with(count, "")
    }

    /// The same, with more settings for the agents.
    pub(crate) fn with(count: usize, settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = Server::new(directory.path(), "server", "sqlite:store.db");
        server.serve();
        let mut site = Self { hosts: Vec::new(), server, directory };
        for _ in 0..count {
            let host = Host::boot();
            host.start_agent(site.server.grpc(), settings);
            site.hosts.push(host);
        }
        site.server.nodes_online(count);
        site
    }

    /// The only machine.
    pub(crate) fn host(&self) -> &Host {
        &self.hosts[0]
    }

    #[track_caller]
    pub(crate) fn text(&self, words: &[&str]) -> String {
        self.server.run(words).ok()
    }

    /// Submits one task for all machines, and returns the run.
    #[track_caller]
    pub(crate) fn submit(&self, words: &[&str]) -> String {
        self.server.submit(&[&["--target", "all"], words].concat())
    }

    /// Submits a job file for all machines, and returns the run.
    #[track_caller]
    pub(crate) fn submit_file(&self, text: &str) -> String {
        let file = self.directory.path().join("job.yaml");
        fs::write(&file, text).unwrap();
        self.submit(&["-f", file.to_str().unwrap()])
    }

    #[track_caller]
    pub(crate) fn show(&self, run: &str) -> Value {
        self.server.whole_run(run)
    }

    #[track_caller]
    pub(crate) fn ended(&self, run: &str) -> Value {
        until("the end of a run", || {
            let view = self.show(run);
            view["finished_at"].is_string().then_some(view)
        })
    }

    /// Waits for a run's end, and returns the result of its first step on the only machine.
    #[track_caller]
    pub(crate) fn result(&self, run: &str) -> Result {
        let view = self.ended(run);
        let result = &view["results"]["0"][&self.host().name];
        Result {
            status: result["status"].as_str().unwrap_or_default().to_owned(),
            exit_code: result["exit_code"].as_i64(),
            error: result["error"].as_str().unwrap_or_default().to_owned(),
            output: self.text(&["run", "logs", run]),
        }
    }

    /// Runs one task on the only machine, to its end.
    #[track_caller]
    pub(crate) fn task(&self, words: &[&str]) -> Result {
        self.result(&self.submit(words))
    }
}

#[derive(Debug)]
pub(crate) struct Result {
    pub(crate) status: String,
    pub(crate) exit_code: Option<i64>,
    pub(crate) error: String,
    pub(crate) output: String,
}

impl Result {
    /// Returns the output of a task that succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.status.as_str(), self.exit_code), ("succeeded", Some(0)), "{self:?}");
        self.output
    }

    /// Returns the output of a task that failed with this code.
    #[track_caller]
    pub(crate) fn failed(self, exit_code: i64) -> String {
        assert_eq!((self.status.as_str(), self.exit_code), ("failed", Some(exit_code)), "{self:?}");
        self.output
    }
}
