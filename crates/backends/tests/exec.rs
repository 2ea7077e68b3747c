//! The backend `exec` with real processes.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use downbeat_backends::{
    Backend, Call, Environment, Exec, Finish, Identity, Ledger, Means, OutputSink, Piece, Receive, Stream,
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
    ledger: Arc<Ledger>,
    kept: Arc<Kept>,
    cancel: CancellationToken,
    grace: Duration,
    environment: Environment,
    identity: Identity,
}

impl Bench {
    fn new() -> Self {
        Self::with(Means::found())
    }

    /// One for each way in which a host can start processes and find them again.
    fn all() -> [Self; 4] {
        [
            Self::new(),
            Self::with(Means::found().without_births()),
            Self::with(Means::found().without_groups()),
            Self::with(Means::found().without_groups().without_clone()),
        ]
    }

    fn with(means: Means) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number =
            u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) | (u128::from(std::process::id()) << 32);
        let dir = tempfile::tempdir().unwrap();
        let ledger = Arc::new(Ledger::open_with(&dir.path().join("running"), means).unwrap());
        Self {
            exec: Exec { ledger: ledger.clone() },
            ledger,
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

    /// Runs a script, cancels it once it has printed `ready`.
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
    for bench in Bench::all() {
        let finish =
            bench.run("run", json!({"command": ["printf", "%s|"], "args": ["a b", "$HOME", "*", ";"]})).await;
        assert_eq!(finish, Finish::succeeded());
        assert_eq!(bench.text(Stream::Stdout), "a b|$HOME|*|;|");
    }
}

#[tokio::test]
async fn environment_directory_and_input_reach_the_process() {
    for bench in Bench::all() {
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
}

#[tokio::test]
async fn input_that_the_program_does_not_read_is_not_an_error() {
    for bench in Bench::all() {
        let input = "line\n".repeat(200_000);
        let finish = bench.run("run", json!({"command": ["head", "-n", "1"], "stdin": input})).await;
        assert_eq!(finish, Finish::succeeded());
        assert_eq!(bench.text(Stream::Stdout), "line\n");
    }
}

#[tokio::test]
async fn exit_codes_and_signals_are_reported() {
    for (script, exit_code, error) in [
        ("exit 3", 3, "exited with code 3"),
        ("kill -KILL $$", 137, "killed by SIGKILL"),
        ("kill -SEGV $$", 139, "killed by SIGSEGV"),
        ("kill -34 $$", 162, "killed by signal 34"),
    ] {
        for bench in Bench::all() {
            assert_eq!(bench.shell(script).await, Finish::failed(Some(exit_code), error), "{script}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_run_is_named() {
    for bench in Bench::all() {
        let file = |name: &str, text: &str, mode: u32| {
            let file = bench.dir.path().join(name);
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            file.to_str().unwrap().to_owned()
        };
        let (data, script) = (file("data", "text", 0o600), file("script", "#!/nope/interp\n", 0o700));
        let cases = [
            (json!("no-such-program-anywhere"), 127, "command not found"),
            (json!(data), 126, "permission denied"),
            (json!(script), 127, "its interpreter /nope/interp does not exist"),
        ];
        for (program, exit_code, reason) in cases {
            let finish = bench.run("run", json!({"command": [program]})).await;
            let error = format!("cannot run `{}`: {reason}", program.as_str().unwrap());
            assert_eq!(finish, Finish::failed(Some(exit_code), error));
        }
        for (dir, problem) in [("/no/such/dir", "does not exist"), (&*data, "is not a directory")] {
            let finish = bench.run("run", json!({"command": ["true"], "working_dir": dir})).await;
            let error = format!("cannot run `true`: working directory `{dir}` {problem}");
            assert_eq!(finish, Finish::failed(None, error));
        }
    }
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
    for bench in Bench::all() {
        let script =
            "(setsid bash -c 'sleep 1000 & disown; sleep 1000' &); sleep 0.1; echo ready; sleep 1000";
        let finish = bench.cancel_when_ready(script).await;
        assert_eq!((finish.verdict, finish.exit_code), (Verdict::Cancelled, Some(143)));
        assert_eq!(bench.alive(), 0);
    }
}

fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// The number that a script printed as `pid NUMBER`.
fn said_pid(bench: &Bench) -> i32 {
    let text = bench.text(Stream::Stdout);
    text.lines().find_map(|line| line.strip_prefix("pid ")?.split(' ').next()?.parse().ok()).unwrap()
}

#[tokio::test]
async fn cancelling_takes_children_that_shed_every_mark_but_their_group_or_their_descent() {
    // The standard library cannot make a process adopt its orphans.
    for bench in Bench::all().into_iter().take(3) {
        // A child without environment, session and parent prints its pid.
        let script = "(env -i setsid bash -c 'echo pid $$ ready; exec sleep 1000' &); sleep 1000";
        let finish = bench.cancel_when_ready(script).await;
        assert_eq!(finish.verdict, Verdict::Cancelled);
        assert!(!is_alive(said_pid(&bench)), "{:?}", bench.exec);
    }
}

/// The directory of a process' control group of version 2, if it is one of ours.
fn group_of(output: &str) -> Option<PathBuf> {
    let path = output.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let dirs = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(|root| Path::new(root).join(path));
    dirs.into_iter().find(|dir| path.contains("downbeat/") && dir.join("cgroup.procs").exists())
}

/// Returns whether processes are started in control groups here.
async fn has_births() -> bool {
    let bench = Bench::new();
    bench.shell("cat /proc/self/cgroup").await;
    bench.text(Stream::Stdout).lines().any(|line| line.starts_with("0::/") && line.contains("downbeat/"))
}

#[tokio::test]
async fn a_process_is_in_the_group_of_its_execution_from_its_first_instruction() {
    if !has_births().await {
        return;
    }
    let bench = Bench::new();
    let finish = bench.run("run", json!({"command": ["cat", "/proc/self/cgroup"]})).await;
    assert_eq!(finish, Finish::succeeded());
    let text = bench.text(Stream::Stdout);
    let name = format!("downbeat/{}", bench.identity);
    assert!(text.lines().any(|line| line.starts_with("0::/") && line.ends_with(&name)), "{text}");
    assert_eq!(group_of(&text), None, "nothing is left behind");
}

#[tokio::test]
async fn a_group_that_a_daemon_outlived_is_removed_by_the_next_start_after_the_daemons_end() {
    if !has_births().await {
        return;
    }
    let bench = Bench::new();
    let script = "sleep 1000 >/dev/null 2>&1 & echo pid $!; cat /proc/self/cgroup";
    assert_eq!(bench.shell(script).await, Finish::succeeded());
    let group = group_of(&bench.text(Stream::Stdout)).expect("the daemon keeps it");
    bench.ledger.sweep(Duration::ZERO).await;
    assert!(group.exists() && is_alive(said_pid(&bench)));
    end_leftovers(&bench);
    let deadline = Instant::now() + Duration::from_secs(10);
    while group.exists() {
        assert!(Instant::now() < deadline, "the group is never removed");
        bench.ledger.sweep(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn cancelling_takes_children_that_something_moved_out_of_the_group() {
    if !has_births().await || !nix::unistd::geteuid().is_root() {
        return;
    }
    let bench = Bench::new();
    let script = "env -i setsid bash -c 'for root in /sys/fs/cgroup /sys/fs/cgroup/unified; do \
                      [ ! -e $root/cgroup.controllers ] || echo $$ >$root/cgroup.procs; done; \
                      echo pid $$; grep -q downbeat/ /proc/$$/cgroup || echo ready; exec sleep 1000' & wait";
    let finish = bench.cancel_when_ready(script).await;
    assert_eq!(finish.verdict, Verdict::Cancelled);
    assert!(!is_alive(said_pid(&bench)));
}

#[tokio::test]
async fn an_agent_without_time_kills_all_that_it_runs() {
    for bench in Bench::all() {
        let kill = async {
            let deadline = Instant::now() + Duration::from_secs(10);
            while !bench.text(Stream::Stdout).contains("ready") {
                assert!(Instant::now() < deadline, "never ready");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            bench.ledger.kill_all().await;
            assert_eq!(bench.alive(), 0);
        };
        let script = "trap '' TERM; (setsid sleep 1000 &); echo ready; sleep 1000; sleep 1000";
        let (finish, ()) = tokio::join!(bench.shell(script), kill);
        assert_eq!(finish, Finish::failed(Some(137), "killed by SIGKILL"));
    }
}

#[tokio::test]
async fn who_ignores_the_request_is_killed_after_the_grace_period() {
    for mut bench in Bench::all() {
        bench.grace = Duration::from_millis(200);
        let begun = Instant::now();
        let finish = bench.cancel_when_ready("trap '' TERM; echo ready; while :; do sleep 1000; done").await;
        assert_eq!((finish.verdict, finish.exit_code), (Verdict::Cancelled, Some(137)));
        assert!(begun.elapsed() >= bench.grace);
        assert_eq!(bench.alive(), 0);
    }
}

#[tokio::test]
async fn who_tidies_up_within_the_grace_period_is_let_to_and_heard() {
    for bench in Bench::all() {
        let script = "trap 'echo tidy; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
        let finish = bench.cancel_when_ready(script).await;
        assert_eq!((finish.verdict, finish.exit_code), (Verdict::Cancelled, Some(0)));
        assert_eq!(bench.text(Stream::Stdout), "ready\ntidy\n");
    }
}

#[tokio::test]
async fn a_process_that_is_stopped_ends_too() {
    for bench in Bench::all() {
        let finish = bench.cancel_when_ready("echo ready; kill -STOP $$").await;
        assert_eq!(finish.verdict, Verdict::Cancelled);
        assert_eq!(bench.alive(), 0);
    }
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
