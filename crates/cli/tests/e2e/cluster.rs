//! Owns processes of the program for tests: started on ports of their own, ended when the test ends.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// Generous: the machine may be busy with other tests.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The program, with none of the settings of whoever runs the test.
pub(crate) fn downbeat(dir: &Path) -> Command {
    downbeat_by(env!("CARGO_BIN_EXE_downbeat"), dir)
}

fn downbeat_by(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DOWNBEAT_")) {
        command.env_remove(name);
    }
    command
        .env_remove("NO_COLOR")
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Waits for a value, with a deadline.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < DEADLINE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code().expect("it was not killed"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).expect("one JSON document")
    }
}

/// A process that is ended with the test.
#[derive(Debug)]
pub(crate) struct Process(Option<Child>);

impl Process {
    pub(crate) fn spawn(mut command: Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = self.0.as_ref().expect("it runs").id();
        kill(Pid::from_raw(i32::try_from(id).unwrap()), signal).unwrap();
    }

    /// Until it ended by itself.
    pub(crate) fn wait(mut self) -> Done {
        let mut child = self.0.take().expect("it runs");
        until("the end of a process", || child.try_wait().unwrap());
        Done::of(child.wait_with_output().unwrap())
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it runs")
    }

    /// What it writes on standard output from here on, line by line.
    pub(crate) fn stdout(&mut self) -> Lines {
        Lines::of(self.child().stdout.take().expect("nobody else reads it"))
    }

    /// What it writes on standard error from here on, line by line.
    pub(crate) fn stderr(&mut self) -> Lines {
        Lines::of(self.child().stderr.take().expect("nobody else reads it"))
    }
}

/// Lines that come over time.
#[derive(Debug)]
pub(crate) struct Lines(Receiver<String>);

impl Lines {
    fn of(pipe: impl Read + Send + 'static) -> Self {
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self(lines)
    }

    /// The next line that has these words, with a deadline.
    #[track_caller]
    pub(crate) fn find(&self, words: &str) -> String {
        let started = Instant::now();
        loop {
            let line = self.0.recv_timeout(DEADLINE.saturating_sub(started.elapsed()));
            let line = line.unwrap_or_else(|_| panic!("waited in vain for a line with `{words}`"));
            if line.contains(words) {
                return line;
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A server with nodes.
#[derive(Debug)]
pub(crate) struct Dev {
    pub(crate) process: Process,
    pub(crate) dir: TempDir,
    pub(crate) ready: Value,
}

impl Dev {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(more: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let command = downbeat(dir.path());
        Self::start_by(command, dir, more)
    }

    /// As the first process of a container. Needs root.
    pub(crate) fn start_as_first_process() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = downbeat(dir.path());
        let mut command = downbeat_by("unshare", dir.path());
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(program.get_program());
        Self::start_by(command, dir, &["--nodes", "1"])
    }

    fn start_by(mut command: Command, dir: TempDir, more: &[&str]) -> Self {
        command.args(["dev", "--data", "data", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
        command.args(["--ready-file", "ready.json"]).args(more);
        let process = Process::spawn(command);
        let ready = ready(dir.path(), "ready.json");
        Self { process, dir, ready }
    }

    pub(crate) fn url(&self) -> &str {
        self.ready["url"].as_str().unwrap()
    }

    /// The program as a client of this server.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = downbeat(self.dir.path());
        command.env("DOWNBEAT_SERVER", self.url()).args(args);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Done {
        Done::of(self.command(args).output().unwrap())
    }

    /// Submits, and answers the run's id.
    pub(crate) fn submit(&self, args: &[&str]) -> String {
        let run = self.run(&[&["job", "run", "-o", "json"], args].concat()).json();
        run["id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn run_status(&self, id: &str) -> String {
        self.run(&["run", "show", id, "-o", "json"]).json()["status"].as_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// What a process says of itself when it is up.
pub(crate) fn ready(dir: &Path, file: &str) -> Value {
    until("the program to be up", || {
        serde_json::from_str(&std::fs::read_to_string(dir.join(file)).ok()?).ok()
    })
}

/// A job file of the repository.
pub(crate) fn example(name: &str) -> String {
    format!("{}/../../examples/{name}", env!("CARGO_MANIFEST_DIR"))
}
