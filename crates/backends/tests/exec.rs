//! The backend `exec` with real processes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use downbeat_backends::{
    Backend, Call, Environment, Exec, Finish, Identity, Ledger, OutputSink, Piece, Receive, Stream,
};
use downbeat_core::backend::Params;
use downbeat_core::execution::Verdict;
use downbeat_core::ids::ExecutionId;
use serde_json::{Value, json};
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

struct Bench {
    dir: TempDir,
    exec: Exec,
    kept: Arc<Kept>,
    cancel: CancellationToken,
    grace: Duration,
    environment: Environment,
    identity: Identity,
}

impl Bench {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number =
            u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) | (u128::from(std::process::id()) << 32);
        let dir = tempfile::tempdir().unwrap();
        let ledger = Arc::new(Ledger::open(&dir.path().join("running")).unwrap());
        Self {
            exec: Exec::new(ledger),
            dir,
            kept: Arc::default(),
            cancel: CancellationToken::new(),
            grace: Duration::from_secs(5),
            environment: Environment::of_process(&[]),
            identity: Identity { execution: ExecutionId(Uuid::from_u128(number << 64)), attempt: 2 },
        }
    }

    async fn run(&self, action: &str, params: Value) -> Finish {
        let params: Params =
            params.as_object().unwrap().iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let output = OutputSink::new(self.kept.clone(), Arc::new(jiff::Timestamp::now));
        let finish = self
            .exec
            .run(Call {
                values: None,
                action: action.to_owned(),
                params,
                identity: self.identity,
                output: output.clone(),
                cancel: self.cancel.clone(),
                grace: self.grace,
                environment: self.environment.clone(),
                guard: None,
            })
            .await;
        output.finish();
        finish
    }

    async fn shell(&self, script: &str) -> Finish {
        self.run("shell", json!({ "command": script })).await
    }

    fn text(&self, stream: Stream) -> String {
        let pieces = self.kept.0.lock().unwrap();
        pieces.iter().filter(|piece| piece.stream == stream).map(|piece| piece.text.as_str()).collect()
    }

    fn alive(&self) -> usize {
        let marker = format!("DOWNBEAT_EXECUTION={}", self.identity);
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        entries
            .filter(|entry| {
                std::fs::read(entry.path().join("environ"))
                    .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|one| one == marker.as_bytes()))
            })
            .count()
    }

    /// Runs a script, cancels it once it has said `ready`.
    async fn cancel_when_ready(&self, script: &str) -> Finish {
        let watch = async {
            let deadline = Instant::now() + Duration::from_secs(10);
            while !self.text(Stream::Stdout).contains("ready") {
                assert!(Instant::now() < deadline, "never ready");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.cancel.cancel();
        };
        tokio::join!(self.shell(script), watch).0
    }
}

#[tokio::test]
async fn an_argv_is_run_as_it_is() {
    let bench = Bench::new();
    let finish =
        bench.run("run", json!({"command": ["printf", "%s|"], "args": ["a b", "$HOME", "*", ";"]})).await;
    assert_eq!(finish, Finish::succeeded());
    assert_eq!(bench.text(Stream::Stdout), "a b|$HOME|*|;|");
}

#[tokio::test]
async fn environment_directory_and_input_reach_the_process() {
    let bench = Bench::new();
    let dir = bench.dir.path().canonicalize().unwrap();
    let finish = bench
        .run(
            "shell",
            json!({
                "command": "echo $COLOUR $DOWNBEAT_EXECUTION; pwd; cat; echo oops >&2",
                "env": {"COLOUR": "blue", "DOWNBEAT_EXECUTION": "forged"},
                "working_dir": dir.to_str().unwrap(),
                "stdin": "typed\n",
            }),
        )
        .await;
    assert_eq!(finish, Finish::succeeded());
    let expected = format!("blue {}\n{}\ntyped\n", bench.identity, dir.display());
    assert_eq!((bench.text(Stream::Stdout), bench.text(Stream::Stderr).as_str()), (expected, "oops\n"));
}

#[tokio::test]
async fn input_that_nobody_reads_is_no_error() {
    let bench = Bench::new();
    let input = "line\n".repeat(200_000);
    let finish = bench.run("run", json!({"command": ["head", "-n", "1"], "stdin": input})).await;
    assert_eq!(finish, Finish::succeeded());
    assert_eq!(bench.text(Stream::Stdout), "line\n");
}

#[tokio::test]
async fn exit_codes_and_signals_are_told() {
    for (script, exit_code, error) in [
        ("exit 3", 3, "exited with code 3"),
        ("kill -KILL $$", 137, "killed by SIGKILL"),
        ("kill -SEGV $$", 139, "killed by SIGSEGV"),
    ] {
        assert_eq!(Bench::new().shell(script).await, Finish::failed(Some(exit_code), error), "{script}");
    }
}

#[tokio::test]
async fn what_cannot_be_run_is_named() {
    let bench = Bench::new();
    let finish = bench.run("run", json!({"command": ["no-such-program-anywhere"]})).await;
    assert_eq!(finish, Finish::failed(Some(127), "cannot run `no-such-program-anywhere`: command not found"));
    let file = bench.dir.path().join("data").to_str().unwrap().to_owned();
    std::fs::write(&file, "no program").unwrap();
    let finish = bench.run("run", json!({"command": [file]})).await;
    assert_eq!(finish, Finish::failed(Some(126), format!("cannot run `{file}`: permission denied")));
    let finish = bench.run("run", json!({"command": ["true"], "working_dir": "/no/such/dir"})).await;
    assert_eq!(
        finish,
        Finish::failed(None, "cannot run `true`: working directory `/no/such/dir` does not exist")
    );
}

#[tokio::test]
async fn a_daemon_left_behind_neither_delays_the_end_nor_is_killed() {
    let bench = Bench::new();
    let begun = Instant::now();
    let finish = bench.shell("sleep 1000 & echo started").await;
    assert_eq!(finish, Finish::succeeded());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(bench.text(Stream::Stdout), "started\n");
    assert_eq!(bench.alive(), 1);
    let record = std::fs::read_to_string(bench.dir.path().join("running/ledger")).unwrap();
    assert_eq!(record.trim(), "", "it is nobody's to end at the next start");
    let ledger = Ledger::open(&bench.dir.path().join("running")).unwrap();
    assert_eq!(ledger.sweep(Duration::ZERO).await, []);
    assert_eq!(bench.alive(), 1);
    end_leftovers(&bench);
}

fn end_leftovers(bench: &Bench) {
    let marker = format!("DOWNBEAT_EXECUTION={}", bench.identity);
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let marked = std::fs::read(entry.path().join("environ"))
            .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|one| one == marker.as_bytes()));
        if let (true, Some(pid)) = (marked, entry.file_name().to_str().and_then(|pid| pid.parse().ok())) {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
    }
}

#[tokio::test]
async fn cancelling_takes_children_that_left_session_and_parent() {
    let bench = Bench::new();
    let script = "(setsid bash -c 'sleep 1000 & disown; sleep 1000' &); sleep 0.1; echo ready; sleep 1000";
    let finish = bench.cancel_when_ready(script).await;
    assert_eq!((finish.verdict, finish.exit_code), (Verdict::Cancelled, Some(143)));
    assert_eq!(bench.alive(), 0);
}

#[tokio::test]
async fn cancelling_takes_children_that_shed_every_other_mark_where_there_are_control_groups() {
    let bench = Bench::new();
    // The shell says its own pid and control group; then a child without environment, session and parent its pid.
    let script = "grep -c downbeat/ /proc/$$/cgroup; sleep 0.5; grep -c downbeat/ /proc/$$/cgroup; \
                  (env -i setsid bash -c 'echo pid $$ ready; exec sleep 1000' &); sleep 1000";
    let finish = bench.cancel_when_ready(script).await;
    assert_eq!(finish.verdict, Verdict::Cancelled);
    let text = bench.text(Stream::Stdout);
    let lines: Vec<&str> = text.lines().collect();
    let pid = lines[2].split(' ').nth(1).unwrap();
    let alive = std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    let enclosed = lines[1] != "0";
    if alive {
        let pid = nix::unistd::Pid::from_raw(pid.parse().unwrap());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    }
    assert_eq!(alive, !enclosed, "{text}");
}

#[tokio::test]
async fn who_ignores_the_request_is_killed_after_the_grace_period() {
    let mut bench = Bench::new();
    bench.grace = Duration::from_millis(200);
    let begun = Instant::now();
    let finish = bench.cancel_when_ready("trap '' TERM; echo ready; while :; do sleep 1000; done").await;
    assert_eq!((finish.verdict, finish.exit_code), (Verdict::Cancelled, Some(137)));
    assert!(begun.elapsed() >= bench.grace);
    assert_eq!(bench.alive(), 0);
}

#[tokio::test]
async fn who_tidies_up_within_the_grace_period_is_let_to_and_heard() {
    let bench = Bench::new();
    let script = "trap 'echo tidy; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let finish = bench.cancel_when_ready(script).await;
    assert_eq!((finish.verdict, finish.exit_code), (Verdict::Cancelled, Some(0)));
    assert_eq!(bench.text(Stream::Stdout), "ready\ntidy\n");
}

#[tokio::test]
async fn a_process_that_is_stopped_ends_too() {
    let bench = Bench::new();
    let finish = bench.cancel_when_ready("echo ready; kill -STOP $$").await;
    assert_eq!(finish.verdict, Verdict::Cancelled);
    assert_eq!(bench.alive(), 0);
}

#[tokio::test]
async fn what_is_cancelled_before_it_starts_never_runs() {
    let bench = Bench::new();
    bench.cancel.cancel();
    let trace = bench.dir.path().join("trace");
    let finish = bench.shell(&format!("touch {}", trace.display())).await;
    assert_eq!(finish.verdict, Verdict::Cancelled);
    assert!(!trace.exists());
}
