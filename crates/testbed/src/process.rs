//! One process that ends with its test, and its output.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::processes::signal;
use crate::wait::{DEADLINE, until};

/// How a command ended.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    /// Runs a command to its end.
    pub fn of(command: &mut Command) -> Self {
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: code(status), stdout: text(stdout), stderr: text(stderr) }
    }

    /// Returns the standard output of a command that succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// Returns the JSON document that a successful command printed.
    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.ok()).expect("one JSON document")
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().expect("it was not killed")
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The file of its standard error, and the length of that file at the start.
    log: Option<(PathBuf, usize)>,
}

impl Process {
    /// Starts a command. Its output goes where the command directs it.
    pub fn spawn(mut command: Command) -> Self {
        Self { child: command.spawn().unwrap(), log: None }
    }

    /// Starts a command. Its standard error is appended to `log`, and its standard output to a file next to it.
    pub(crate) fn logged(mut command: Command, log: &Path) -> Self {
        let file = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let begins = usize::try_from(file.metadata().unwrap().len()).unwrap();
        command.stdout(fs::File::create(log.with_extension("out")).unwrap()).stderr(file);
        Self { child: command.spawn().unwrap(), log: Some((log.to_owned(), begins)) }
    }

    pub fn id(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub fn signal(&self, what: Signal) {
        signal(self.id(), what);
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns its exit status; nothing while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn wait(mut self) -> Done {
        let status = until("a process ends", || self.ended());
        let (stdout, stderr) = match &self.log {
            Some((log, _)) => (fs::read_to_string(log.with_extension("out")).unwrap(), self.log_text()),
            None => (read(self.child.stdout.take()), read(self.child.stderr.take())),
        };
        Done { code: code(status), stdout, stderr }
    }

    /// Returns its log so far. Only for a process whose log is a file.
    pub(crate) fn log_text(&self) -> String {
        let (log, begins) = self.log.as_ref().expect("its log is a file");
        fs::read_to_string(log).unwrap().split_off(*begins)
    }

    /// Writes to its standard input, and closes it.
    pub fn write(&mut self, text: &str) {
        self.child.stdin.take().expect("the stream is piped").write_all(text.as_bytes()).unwrap();
    }

    /// Returns the lines that it writes to standard output from here on.
    pub fn stdout(&mut self) -> Lines {
        Lines::of(self.child.stdout.take().expect("the stream is piped"))
    }

    /// Returns the lines that it writes to standard error from here on.
    pub fn stderr(&mut self) -> Lines {
        Lines::of(self.child.stderr.take().expect("the stream is piped"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read(pipe: Option<impl Read>) -> String {
    pipe.map(|pipe| std::io::read_to_string(pipe).unwrap()).unwrap_or_default()
}

/// Lines that a process writes over time.
#[derive(Debug)]
pub struct Lines(Receiver<String>);

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

    /// Waits for the next line; nothing after the last one.
    #[track_caller]
    pub fn next(&self) -> Option<String> {
        match self.0.recv_timeout(DEADLINE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no further line came"),
        }
    }

    /// Waits for the next line that contains these words.
    #[track_caller]
    pub fn find(&self, words: &str) -> String {
        let started = Instant::now();
        loop {
            let line = self.0.recv_timeout(DEADLINE.saturating_sub(started.elapsed()));
            let line = line.unwrap_or_else(|_| panic!("there is no line with `{words}`"));
            if line.contains(words) {
                return line;
            }
        }
    }
}
