//! Owns a server here and the machines that it commands: jobs go in by the command line, results come out of it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::host::Host;
use crate::support::DEADLINE;

pub(crate) struct Site {
    // First, so that their agents do not outlive the server.
    pub(crate) hosts: Vec<Host>,
    server: Child,
    url: String,
    grpc: String,
    directory: tempfile::TempDir,
}

/// Waits for a value, with a deadline.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < DEADLINE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The program, with none of the settings of whoever runs the test.
fn downbeat() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_downbeat"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DOWNBEAT_")) {
        command.env_remove(name);
    }
    command
}

impl Site {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = downbeat()
            .args(["server", "--store", "sqlite:store.db", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"])
            .args(["--ready-file", "ready.json"])
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(fs::File::create(directory.path().join("server.log")).unwrap())
            .spawn()
            .unwrap();
        let ready: Value = until("the server", || {
            serde_json::from_str(&fs::read_to_string(directory.path().join("ready.json")).ok()?).ok()
        });
        let address = |key: &str| ready[key].as_str().unwrap().to_owned();
        let (url, grpc) = (address("url"), address("grpc"));
        Self { hosts: Vec::new(), server, url, grpc, directory }
    }

    /// A server and machines with agents, all online.
    pub(crate) fn of(count: usize) -> Self {
        Self::with(count, "")
    }

    /// The same, with more settings for the agents.
    pub(crate) fn with(count: usize, settings: &str) -> Self {
        let mut site = Self::new();
        for _ in 0..count {
            let host = Host::boot();
            host.start_agent(&site.grpc, settings);
            site.hosts.push(host);
        }
        until("the nodes", || {
            let nodes = site.json(&["node", "list"]);
            let online = nodes["data"].as_array()?.iter().filter(|node| node["status"] == "online").count();
            (online == count).then_some(())
        });
        site
    }

    /// The only machine.
    pub(crate) fn host(&self) -> &Host {
        &self.hosts[0]
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = downbeat();
        command.env("DOWNBEAT_SERVER", &self.url).args(words);
        command
    }

    #[track_caller]
    pub(crate) fn text(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[words, &["--output", "json"]].concat())).unwrap()
    }

    /// One task on all machines; answers the run.
    #[track_caller]
    pub(crate) fn submit(&self, words: &[&str]) -> String {
        let run = self.json(&[&["job", "run", "--target", "all"], words].concat());
        run["id"].as_str().unwrap().to_owned()
    }

    /// A job file on all machines; answers the run.
    #[track_caller]
    pub(crate) fn submit_file(&self, text: &str) -> String {
        let file: PathBuf = self.directory.path().join("job.yaml");
        fs::write(&file, text).unwrap();
        self.submit(&["-f", file.to_str().unwrap()])
    }

    #[track_caller]
    pub(crate) fn show(&self, run: &str) -> Value {
        self.json(&["run", "show", run])
    }

    #[track_caller]
    pub(crate) fn ended(&self, run: &str) -> Value {
        until("the end of a run", || {
            let view = self.show(run);
            view["finished_at"].is_string().then_some(view)
        })
    }

    /// What a step became on the only machine: status, exit code, output.
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

    /// One task on the only machine, to its end.
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
    /// It succeeded; answers its output.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.status.as_str(), self.exit_code), ("succeeded", Some(0)), "{self:?}");
        self.output
    }

    /// It failed with this code; answers its output.
    #[track_caller]
    pub(crate) fn failed(self, exit_code: i64) -> String {
        assert_eq!((self.status.as_str(), self.exit_code), ("failed", Some(exit_code)), "{self:?}");
        self.output
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.hosts.clear();
        let _ = self.server.kill();
        let _ = self.server.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.directory.path().join("server.log")).unwrap_or_default();
            eprintln!("--- server\n{log}");
        }
    }
}
