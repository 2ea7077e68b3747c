//! Shared by tests of backends: a bench to run one, and a program that replaces others.
#![allow(dead_code, reason = "each test uses its part")]

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use downbeat_backends::{
    Backend, Call, Environment, Finish, Identity, Ledger, OutputSink, Piece, Receive, Stream,
};
use downbeat_core::backend::{Params, check_params};
use downbeat_core::ids::ExecutionId;
use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

#[derive(Default)]
struct Kept(Mutex<Vec<Piece>>);

impl Receive for Kept {
    fn piece(&self, piece: Piece) {
        self.0.lock().unwrap().push(piece);
    }
}

pub(crate) struct Bench {
    pub(crate) dir: TempDir,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) cancel: CancellationToken,
    pub(crate) grace: Duration,
    pub(crate) environment: Environment,
    pub(crate) values: Option<PathBuf>,
    kept: Arc<Kept>,
    pub(crate) identity: Identity,
}

pub(crate) fn params(value: &Value) -> Params {
    value.as_object().unwrap().iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

impl Bench {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number =
            u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) | (u128::from(std::process::id()) << 32);
        let dir = tempfile::tempdir().unwrap();
        Self {
            ledger: Arc::new(Ledger::open(&dir.path().join("running")).unwrap()),
            dir,
            cancel: CancellationToken::new(),
            grace: Duration::from_secs(5),
            environment: Environment::of_process(&[]),
            values: None,
            kept: Arc::default(),
            identity: Identity { execution: ExecutionId(Uuid::from_u128(number << 64)), attempt: 1 },
        }
    }

    /// The canonical directory.
    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap()
    }

    /// Checks the params as agents do, and runs the action. The error is that of the check.
    pub(crate) async fn try_run(
        &self,
        backend: &dyn Backend,
        action: &str,
        given: &Params,
    ) -> Result<Finish, String> {
        let schema = backend.schema();
        let checked = check_params(schema.action(action).unwrap(), given)
            .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
        let output = OutputSink::new(self.kept.clone(), Arc::new(jiff::Timestamp::now));
        let call = Call {
            values: self.values.clone(),
            action: action.to_owned(),
            params: checked,
            identity: self.identity,
            output: output.clone(),
            cancel: self.cancel.clone(),
            grace: self.grace,
            environment: self.environment.clone(),
            guard: None,
        };
        let finish = backend.run(call).await;
        output.finish();
        Ok(finish)
    }

    pub(crate) async fn run(&self, backend: &dyn Backend, action: &str, given: Value) -> Finish {
        self.try_run(backend, action, &params(&given)).await.unwrap()
    }

    /// Runs the action, and cancels it once it has printed `ready`.
    pub(crate) async fn cancel_when_ready(
        &self,
        backend: &dyn Backend,
        action: &str,
        given: Value,
    ) -> Finish {
        tokio::join!(self.run(backend, action, given), self.cancel_once(|| self.stdout().contains("ready"))).0
    }

    pub(crate) async fn cancel_once(&self, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !condition() {
            assert!(Instant::now() < deadline, "never ready");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.cancel.cancel();
    }

    fn text(&self, stream: Stream) -> String {
        let pieces = self.kept.0.lock().unwrap();
        pieces.iter().filter(|piece| piece.stream == stream).map(|piece| piece.text.as_str()).collect()
    }

    pub(crate) fn stdout(&self) -> String {
        self.text(Stream::Stdout)
    }

    pub(crate) fn stderr(&self) -> String {
        self.text(Stream::Stderr)
    }

    pub(crate) fn forget_output(&self) {
        self.kept.0.lock().unwrap().clear();
    }

    /// Processes of this bench that still run.
    pub(crate) fn alive(&self) -> usize {
        let marker = format!("DOWNBEAT_EXECUTION={}", self.identity);
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        entries
            .filter(|entry| {
                std::fs::read(entry.path().join("environ"))
                    .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|one| one == marker.as_bytes()))
            })
            .count()
    }

    pub(crate) fn stand_in(&self, name: &str) -> StandIn {
        StandIn::new(&self.root().join("programs"), name)
    }
}

/// A program that records its arguments. A link, never a copy: a file that was just written may be busy to execute.
pub(crate) struct StandIn {
    pub(crate) program: PathBuf,
}

/// The input of a child process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) argv: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) directory: String,
    pub(crate) input: String,
}

impl StandIn {
    fn new(parent: &Path, name: &str) -> Self {
        let dir = parent.join(format!("{name}.d"));
        std::fs::create_dir_all(&dir).unwrap();
        let program = dir.join(name);
        symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_in"), &program).unwrap();
        Self { program }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.program.parent().unwrap()
    }

    pub(crate) fn exits_with(&self, code: i32) {
        std::fs::write(self.dir().join("code"), code.to_string()).unwrap();
    }

    pub(crate) fn waits(&self) {
        std::fs::write(self.dir().join("wait"), "").unwrap();
    }

    /// Returns what it received in its last call, once.
    pub(crate) fn seen(&self) -> Option<Seen> {
        let read = |name: &str| {
            let file = self.dir().join(name);
            let text = String::from_utf8(std::fs::read(&file).ok()?).unwrap();
            std::fs::remove_file(file).unwrap();
            Some(text)
        };
        let split = |text: String| text.split_terminator('\0').map(str::to_owned).collect::<Vec<_>>();
        Some(Seen {
            argv: split(read("argv")?),
            environment: split(read("environment")?)
                .into_iter()
                .filter_map(|entry| entry.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())))
                .collect(),
            directory: read("directory")?.trim_end().to_owned(),
            input: read("input")?,
        })
    }

    /// The arguments that it received, without its own name.
    pub(crate) fn args(&self) -> Vec<String> {
        self.seen().expect("it was called").argv.split_off(1)
    }
}
