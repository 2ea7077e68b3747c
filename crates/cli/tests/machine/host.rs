//! Owns one booted machine, which is removed with the test.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use downbeat_testbed::{program, repository};
use serde_json::Value;

static BOOTED: AtomicU32 = AtomicU32::new(0);

/// The agent as users run it: the unit of `packaging/`.
const UNIT: &str = "downbeat-agent.service";
const DPKG_LOG: &str = "var/log/dpkg.log";

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    leader: String,
}

pub(crate) fn script() -> PathBuf {
    repository().join("scripts/root")
}

/// Where the root is that machines are copies of.
pub(crate) fn root() -> String {
    std::env::var("DOWNBEAT_TEST_ROOT").unwrap_or_else(|_| {
        panic!("needs a Debian root: run `make test` as root, or `make root` and set DOWNBEAT_TEST_ROOT to what it says")
    })
}

/// A name that no other machine has.
pub(crate) fn name() -> String {
    format!("db-{}-{}", std::process::id(), BOOTED.fetch_add(1, Ordering::Relaxed))
}

fn text(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

impl Host {
    /// A machine whose agent is not yet started.
    pub(crate) fn boot() -> Self {
        let (root, name) = (root(), name());
        let unit = repository().join("packaging").join(UNIT);
        let booted = Command::new(script())
            .args(["start", &root, &name])
            .arg(format!("--bind-ro={}:/usr/bin/downbeat", program().display()))
            .arg(format!("--bind-ro={}:/etc/systemd/system/{UNIT}", unit.display()))
            .output()
            .unwrap();
        Self { leader: text(booted).trim().to_owned(), name }
    }

    /// A file of the machine, as seen from here.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        Path::new("/proc").join(&self.leader).join("root").join(path)
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a file is in a directory")).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.path(path)).unwrap();
    }

    fn inside(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.leader, "--all", "--"]).args(words).stdin(Stdio::null());
        command
    }

    /// Runs a program inside, to its end.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.inside(words).output().unwrap()
    }

    /// Starts a program inside, as a person there would.
    pub(crate) fn spawn(&self, words: &[&str]) -> Child {
        self.inside(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    #[track_caller]
    pub(crate) fn ok(&self, words: &[&str]) -> String {
        text(self.run(words))
    }

    pub(crate) fn start_agent(&self, grpc: &str, settings: &str) {
        let settings = format!("[agent]\nserver = \"{grpc}\"\nallow = \"exec,file,http\"\n{settings}");
        self.write("etc/downbeat/downbeat.toml", &settings);
        self.ok(&["systemctl", "start", UNIT]);
    }

    /// The process number of the agent inside; 0 while there is none.
    pub(crate) fn agent(&self) -> u32 {
        self.ok(&["systemctl", "show", "--property", "MainPID", "--value", UNIT]).trim().parse().unwrap()
    }

    /// The command lines of processes inside that contain these words.
    pub(crate) fn processes(&self, words: &str) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.path("proc")).unwrap().flatten() {
            if entry.file_name().to_string_lossy().parse::<u32>().is_ok() {
                // A process that has just ended has no command line.
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                if line.contains(words) {
                    found.push(line);
                }
            }
        }
        found
    }

    /// The version that dpkg has, and the state that it is in: `install ok installed 1.0`.
    pub(crate) fn package(&self, name: &str) -> String {
        let output = self.run(&["dpkg-query", "--show", "--showformat=${Status} ${Version}", name]);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns dpkg's log of a package, without the times.
    pub(crate) fn dpkg_log(&self, package: &str) -> Vec<String> {
        let log = self.read(DPKG_LOG);
        let lines = log.lines().filter(|line| line.contains(&format!(" {package}:")));
        lines.map(|line| line.splitn(3, ' ').nth(2).unwrap_or_default().to_owned()).collect()
    }

    /// Returns the journal of a service and its package, oldest first, each entry with its microsecond.
    pub(crate) fn journal(&self, tag: &str) -> Vec<(u64, String)> {
        let lines =
            self.ok(&["journalctl", "--quiet", "--no-pager", "--output", "json", "--identifier", tag]);
        let entry = |line: &str| -> (u64, String) {
            let entry: Value = serde_json::from_str(line).unwrap();
            let micros = entry["__REALTIME_TIMESTAMP"].as_str().unwrap().parse().unwrap();
            (micros, entry["MESSAGE"].as_str().unwrap().to_owned())
        };
        lines.lines().map(entry).collect()
    }

    /// Returns the journal without the times, and without a shell's message about a terminated child.
    pub(crate) fn messages(&self, tag: &str) -> Vec<String> {
        let messages = self.journal(tag).into_iter().map(|(_, message)| message);
        messages.filter(|message| message != "Terminated").collect()
    }

    /// The microsecond in which a file, or a link itself, was made or last changed.
    pub(crate) fn changed(&self, path: &str) -> Option<u64> {
        let metadata = fs::symlink_metadata(self.path(path)).ok()?;
        u64::try_from(metadata.ctime() * 1_000_000 + metadata.ctime_nsec() / 1000).ok()
    }

    /// Another release of the packages is in the repository from now on.
    pub(crate) fn publish(&self, release: &str) {
        let current = self.path("repo/current");
        fs::remove_file(&current).unwrap();
        std::os::unix::fs::symlink(release, current).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.run(&["journalctl", "--no-pager", "--lines", "60"]);
            eprintln!("--- journal of {}\n{}", self.name, String::from_utf8_lossy(&log.stdout));
        }
        let _ = Command::new(script()).args(["stop", &self.name]).status();
    }
}
