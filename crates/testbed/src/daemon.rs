//! A server or an agent as a process that can be killed, frozen and restarted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};

use nix::sys::signal::Signal;

use crate::process::{Done, Process};
use crate::program::{clean, program};

/// How many lines of a log are shown when a test fails.
const TAIL: usize = 60;

/// A process with a name. Its log is `NAME.log` in its directory and is kept over restarts.
#[derive(Debug)]
pub struct Daemon {
    pub name: String,
    directory: PathBuf,
    /// The program and its arguments.
    words: Vec<String>,
    environment: Vec<(String, String)>,
    process: Mutex<Option<Process>>,
}

impl Daemon {
    /// A command of the program under test, not yet started.
    pub fn new(directory: &Path, name: &str, arguments: &[&str]) -> Self {
        let this = Self {
            name: name.to_owned(),
            directory: directory.to_owned(),
            words: vec![program().display().to_string()],
            environment: Vec::new(),
            process: Mutex::new(None),
        };
        this.with(arguments)
    }

    /// An agent of these servers, not yet started. Its data is in `NAME` in the directory.
    pub fn agent(directory: &Path, name: &str, servers: &str) -> Self {
        let data = directory.join(name).display().to_string();
        Self::new(directory, name, &["agent", "--server", servers, "--hostname", name, "--data", &data])
    }

    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.words.extend(arguments.iter().map(|&word| word.to_owned()));
        self
    }

    /// Adds environment variables.
    pub fn with_env(mut self, variables: &[(&str, &str)]) -> Self {
        self.environment.extend(variables.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        self
    }

    /// Starts it through another program, whose arguments come first.
    pub fn started_by(mut self, words: &[&str]) -> Self {
        self.words.splice(0..0, words.iter().map(|&word| word.to_owned()));
        self
    }

    /// Changes the value of a flag for the next start, and returns the old one.
    pub fn replace(&mut self, flag: &str, value: String) -> String {
        let at = self.words.iter().position(|word| word == flag).expect("the command has this flag");
        std::mem::replace(&mut self.words[at + 1], value)
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap()
    }

    /// Starts it unless it is running.
    pub fn start(&self) {
        let mut process = self.process();
        if process.is_none() {
            let mut command = clean(Command::new(&self.words[0]), &self.directory);
            command.args(&self.words[1..]);
            command.envs(self.environment.iter().map(|(name, value)| (name, value)));
            *process = Some(Process::logged(command, &self.log_file()));
        }
    }

    fn log_file(&self) -> PathBuf {
        self.directory.join(format!("{}.log", self.name))
    }

    pub fn pid(&self) -> i32 {
        self.process().as_ref().expect("it was started").id()
    }

    /// Signals it if it was started.
    pub fn signal(&self, what: Signal) {
        if let Some(process) = &*self.process() {
            process.signal(what);
        }
    }

    /// `kill -9`.
    pub fn kill(&self) {
        if let Some(mut process) = self.process().take() {
            process.kill();
        }
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn wait(&self) -> Done {
        let process = self.process().take();
        process.expect("it was started").wait()
    }

    /// Asks it to stop, and waits until it has.
    #[track_caller]
    pub fn stop(&self) -> Done {
        self.signal(Signal::SIGTERM);
        self.wait()
    }

    pub fn is_running(&self) -> bool {
        self.process().as_mut().is_some_and(|process| process.ended().is_none())
    }

    /// Forgets a process that has ended by itself. Returns true if there was one.
    pub fn reap(&self) -> bool {
        let mut process = self.process();
        process.take_if(|process| process.ended().is_some()).is_some()
    }

    /// Returns its log since the last start.
    pub fn log(&self) -> String {
        self.process().as_ref().map(Process::log_text).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let text = fs::read_to_string(self.log_file()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            eprintln!("--- {}", self.log_file().display());
            lines[lines.len().saturating_sub(TAIL)..].iter().for_each(|line| eprintln!("{line}"));
        }
    }
}
