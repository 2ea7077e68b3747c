//! The backend `docker` against real engines: Docker, and Podman through the same API.

mod support;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bollard::Docker as Client;
use bollard::models::{ContainerCreateBody, ContainerInspectResponse};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, ListContainersOptionsBuilder,
    RemoveContainerOptionsBuilder, StartContainerOptions,
};
use downbeat_backends::{Docker, Engine, Finish, Identity};
use downbeat_core::execution::Verdict;
use downbeat_core::ids::ExecutionId;
use serde_json::{Value, json};
use support::Bench;

const IMAGE: &str = "downbeat-busybox:1";
const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Docker,
    Podman,
}

/// An engine, and a backend that uses it.
struct Site {
    kind: Kind,
    socket: String,
    bench: Bench,
    docker: Docker,
}

impl Site {
    fn new(kind: Kind) -> Self {
        let variable = match kind {
            Kind::Docker => "DOWNBEAT_TEST_DOCKER",
            Kind::Podman => "DOWNBEAT_TEST_PODMAN",
        };
        let socket = std::env::var(variable).unwrap_or_else(|_| {
            panic!("needs {kind:?}: run `make test` as root, or `make containers` and set {variable} to what it says")
        });
        Self::at(kind, socket)
    }

    fn at(kind: Kind, socket: String) -> Self {
        let bench = Bench::new();
        let docker = Docker::new(Engine::read(&socket).unwrap(), bench.dir.path());
        Self { kind, socket, bench, docker }
    }

    fn client(&self) -> Client {
        Client::connect_with_unix(&self.socket, 60, bollard::API_DEFAULT_VERSION).unwrap()
    }

    async fn run(&self, given: Value) -> Finish {
        self.bench.forget_output();
        self.bench.run(&self.docker, "run", params(given)).await
    }

    /// Runs a script in a container.
    async fn shell(&self, script: &str) -> Finish {
        self.run(json!({"command": ["sh", "-c", script]})).await
    }

    fn name(&self) -> String {
        format!("downbeat-{}-{}", self.bench.identity.execution, self.bench.identity.attempt)
    }

    async fn container(&self) -> Option<ContainerInspectResponse> {
        self.client().inspect_container(&self.name(), None::<InspectContainerOptions>).await.ok()
    }

    /// Asserts that nothing of it is left.
    async fn gone(&self) -> bool {
        self.container().await.is_none()
    }

    fn dir(&self, name: &str) -> PathBuf {
        let dir = self.bench.root().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    async fn until_said(&self, words: &str) {
        until(words, async || self.bench.stdout().contains(words).then_some(())).await;
    }
}

fn params(mut given: Value) -> Value {
    let image = given["image"].take();
    given["image"] = if image.is_null() { json!(IMAGE) } else { image };
    given
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < DEADLINE, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Runs each of these on each engine.
macro_rules! on_both {
    ($($rule:ident),* $(,)?) => {
        mod docker {
            $(#[tokio::test] async fn $rule() { super::$rule(super::Site::new(super::Kind::Docker)).await })*
        }
        mod podman {
            $(#[tokio::test] async fn $rule() { super::$rule(super::Site::new(super::Kind::Podman)).await })*
        }
    };
}

on_both!(
    both_streams_are_reported_and_the_container_is_removed,
    output_comes_while_it_runs,
    the_exit_code_is_kept,
    what_is_said_reaches_the_process,
    mounts_are_as_written,
    limits_names_and_labels_are_the_containers,
    more_memory_than_its_limit_ends_it,
    cancelling_asks_first,
    cancelling_ends_what_ignores_it,
    what_is_cancelled_before_it_began_makes_no_container,
    an_image_that_is_missing_is_named,
    a_program_that_is_missing_is_named,
    a_refusal_of_the_engine_is_reported_in_one_line,
    left_overs_go_and_those_of_others_stay,
    values_are_written_by_any_user,
    fifty_mebibytes_come_whole,
    bytes_that_are_not_text_are_marked,
    two_at_once_do_not_meet,
    a_container_that_another_program_removed_is_reported,
);

async fn both_streams_are_reported_and_the_container_is_removed(site: Site) {
    assert_eq!(site.shell("echo out; echo err >&2").await, Finish::succeeded());
    assert_eq!((site.bench.stdout().as_str(), site.bench.stderr().as_str()), ("out\n", "err\n"));
    assert!(site.gone().await);
    // The output of a container that ends at once.
    for turn in 0..10 {
        let mut other = Site::at(site.kind, site.socket.clone());
        other.bench.identity.attempt = turn + 1;
        assert_eq!(other.run(json!({"command": ["echo", turn.to_string()]})).await, Finish::succeeded());
        assert_eq!(other.bench.stdout(), format!("{turn}\n"));
    }
}

async fn output_comes_while_it_runs(site: Site) {
    let dir = site.dir("mounted");
    let script = "echo first; while [ ! -e /m/go ]; do sleep 0.02; done; echo second";
    let mount = format!("{}:/m", dir.display());
    let go = async {
        site.until_said("first\n").await;
        assert!(!site.bench.stdout().contains("second"));
        std::fs::write(dir.join("go"), "").unwrap();
    };
    let run = site.run(json!({"command": ["sh", "-c", script], "mounts": [mount]}));
    let (finish, ()) = tokio::join!(run, go);
    assert_eq!(finish, Finish::succeeded());
    assert_eq!(site.bench.stdout(), "first\nsecond\n");
}

async fn the_exit_code_is_kept(site: Site) {
    assert_eq!(site.shell("echo before; exit 7").await, Finish::failed(Some(7), "exited with code 7"));
    assert_eq!(site.bench.stdout(), "before\n");
    assert!(site.gone().await);
}

async fn what_is_said_reaches_the_process(site: Site) {
    let finish = site
        .run(json!({
            "entrypoint": ["sh", "-c", "printf '%s|' \"$@\"; printf '%s|' \"$A\" \"$(pwd)\" \"$(id -u):$(id -g)\" \"$DOWNBEAT_EXECUTION\"", "x"],
            "command": ["a b", "$(id)", "", "*"],
            "env": {"A": "1 $HOME\n\"x\"", "DOWNBEAT_EXECUTION": "forged"},
            "working_dir": "/work",
            "user": "guest:1000",
            "network": "none",
        }))
        .await;
    assert_eq!(finish, Finish::succeeded(), "{}", site.bench.stderr());
    assert_eq!(
        site.bench.stdout(),
        format!("a b|$(id)||*|1 $HOME\n\"x\"|/work|1000:1000|{}|", site.bench.identity)
    );
    let finish = site.run(json!({"command": ["touch", "/new"], "read_only": true})).await;
    assert_eq!(finish.exit_code, Some(1), "{finish:?}");
    assert!(site.bench.stderr().contains("Read-only"), "{}", site.bench.stderr());
}

async fn mounts_are_as_written(site: Site) {
    let (writable, readable) = (site.dir("writable"), site.dir("readable"));
    std::fs::write(readable.join("given"), "given").unwrap();
    let mounts = json!([
        format!("{}:/w", writable.display()),
        format!("{}:/r:ro", readable.display()),
        format!("{}:/v", site.name())
    ]);
    let script = "cat /r/given > /w/copy && touch /v/x && ! touch /r/new";
    let finish = site.run(json!({"command": ["sh", "-c", script], "mounts": mounts})).await;
    assert_eq!(finish, Finish::succeeded(), "{}", site.bench.stderr());
    assert_eq!(std::fs::read_to_string(writable.join("copy")).unwrap(), "given");
    assert!(!readable.join("new").exists());
    // A named volume outlives its container.
    let volume = format!("{}:/v:ro", site.name());
    assert_eq!(site.run(json!({"command": ["ls", "/v"], "mounts": volume})).await, Finish::succeeded());
    assert_eq!(site.bench.stdout(), "x\n");
    site.client()
        .remove_volume(&site.name(), None::<bollard::query_parameters::RemoveVolumeOptions>)
        .await
        .unwrap();

    // Podman creates it.
    if site.kind == Kind::Docker {
        let missing = site.bench.root().join("missing");
        let finish =
            site.run(json!({"command": "true", "mounts": format!("{}:/m", missing.display())})).await;
        assert_eq!(finish.verdict, Verdict::Failed);
        let error = finish.error.unwrap();
        assert!(error.contains(missing.to_str().unwrap()) && !error.contains('\n'), "{error}");
        assert!(!missing.exists() && site.gone().await);
    }
}

async fn limits_names_and_labels_are_the_containers(site: Site) {
    let look = async {
        site.until_said("ready").await;
        let found = site.container().await.unwrap();
        site.bench.cancel.cancel();
        found
    };
    let run = site.run(json!({
        "command": ["sh", "-c", "echo ready; sleep 600"], "memory": "64m", "cpus": 0.5, "pids": 20,
    }));
    let (finish, found) = tokio::join!(run, look);
    assert_eq!(finish.verdict, Verdict::Cancelled);
    assert_eq!(found.name.unwrap().trim_start_matches('/'), site.name());
    let labels = found.config.unwrap().labels.unwrap();
    assert_eq!(labels["downbeat.execution"], site.bench.identity.execution.to_string());
    assert_eq!(labels["downbeat.attempt"], "1");
    let mark = std::fs::read_to_string(site.bench.dir.path().join("containers")).unwrap();
    assert_eq!(labels["downbeat.node"], mark.trim());
    let host = found.host_config.unwrap();
    let cpus = match host.nano_cpus {
        Some(0) | None => host.cpu_quota.unwrap() * 1_000_000_000 / host.cpu_period.unwrap(),
        Some(nanos) => nanos,
    };
    assert_eq!(
        (host.memory, host.memory_swap, cpus, host.pids_limit),
        (Some(64 << 20), Some(64 << 20), 500_000_000, Some(20))
    );
}

async fn more_memory_than_its_limit_ends_it(site: Site) {
    let script = "x=x; while :; do x=$x$x; done";
    let finish = site.run(json!({"command": ["sh", "-c", script], "memory": "16m"})).await;
    assert_eq!((finish.verdict, finish.exit_code), (Verdict::Failed, Some(137)));
    let error = match site.kind {
        Kind::Docker => "exited with code 137: out of memory (its limit is 16m)",
        Kind::Podman => "exited with code 137: killed, possibly for exceeding its memory limit of 16m",
    };
    assert_eq!(finish.error.as_deref(), Some(error));
    assert!(site.gone().await);
}

async fn cancelling_asks_first(site: Site) {
    let script = "trap 'echo asked; exit 9' TERM; echo ready; while :; do sleep 0.02; done";
    let finish = site
        .bench
        .cancel_when_ready(&site.docker, "run", params(json!({"command": ["sh", "-c", script]})))
        .await;
    assert_eq!(finish, Finish::cancelled(Some(9)));
    assert_eq!(site.bench.stdout(), "ready\nasked\n");
    assert!(site.gone().await);
}

async fn cancelling_ends_what_ignores_it(mut site: Site) {
    site.bench.grace = Duration::from_secs(1);
    let script = "trap '' TERM; sleep 601 & echo ready; while :; do sleep 0.1; done";
    let finish = site
        .bench
        .cancel_when_ready(&site.docker, "run", params(json!({"command": ["sh", "-c", script]})))
        .await;
    assert_eq!(finish, Finish::cancelled(Some(137)));
    assert!(site.gone().await);
    assert_eq!(site.bench.alive(), 0, "its processes are gone too");
}

async fn what_is_cancelled_before_it_began_makes_no_container(site: Site) {
    site.bench.cancel.cancel();
    assert_eq!(site.shell("echo never").await, Finish::cancelled(None));
    assert_eq!(site.bench.stdout(), "");
    assert!(site.gone().await);
}

async fn an_image_that_is_missing_is_named(site: Site) {
    let finish = site.run(json!({"image": "downbeat-nowhere:1", "pull": "never"})).await;
    assert_eq!(
        finish,
        Finish::failed(
            None,
            "image `downbeat-nowhere:1` is not on the host, and `pull: never` forbids pulling it"
        )
    );
    for pull in ["missing", "always"] {
        let finish = site.run(json!({"image": "127.0.0.1:1/nowhere:1", "pull": pull})).await;
        let error = finish.error.unwrap();
        assert!(error.starts_with("cannot pull image `127.0.0.1:1/nowhere:1`: "), "{error}");
        assert!(error.contains("refused") && !error.contains('\n'), "{error}");
        assert_eq!(site.bench.stderr(), "pulling 127.0.0.1:1/nowhere:1\n");
    }
}

async fn a_program_that_is_missing_is_named(site: Site) {
    let finish = site.run(json!({"command": ["no-such-program", "x"]})).await;
    assert_eq!((finish.verdict, finish.exit_code), (Verdict::Failed, Some(127)));
    let error = finish.error.unwrap();
    assert!(error.contains("no-such-program") && !error.contains('\n'), "{error}");
    assert!(site.gone().await);
}

async fn a_refusal_of_the_engine_is_reported_in_one_line(site: Site) {
    let finish = site.run(json!({"command": "true", "network": "no-such-network"})).await;
    let error = finish.error.unwrap();
    assert!(error.contains("no-such-network") && !error.contains('\n'), "{error}");
    assert!(site.gone().await);
}

/// A container as an agent would have left it.
async fn leave(site: &Site, name: &str, mark: &str, identity: Identity) {
    let labels = [
        ("downbeat.execution", identity.execution.to_string()),
        ("downbeat.attempt", identity.attempt.to_string()),
        ("downbeat.node", mark.to_owned()),
    ];
    let body = ContainerCreateBody {
        image: Some(IMAGE.to_owned()),
        cmd: Some(["sleep", "602"].map(str::to_owned).to_vec()),
        labels: Some(labels.map(|(name, value)| (name.to_owned(), value)).into()),
        ..ContainerCreateBody::default()
    };
    let options = CreateContainerOptionsBuilder::default().name(name).build();
    site.client().create_container(Some(options), body).await.unwrap();
    site.client().start_container(name, None::<StartContainerOptions>).await.unwrap();
}

async fn names(site: &Site, mark: &str) -> Vec<String> {
    let filters = HashMap::from([("label".to_owned(), vec![format!("downbeat.node={mark}")])]);
    let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
    let found = site.client().list_containers(Some(options)).await.unwrap();
    found.into_iter().flat_map(|found| found.names.unwrap_or_default()).collect()
}

async fn left_overs_go_and_those_of_others_stay(site: Site) {
    assert_eq!(site.docker.remove_left_over().await.unwrap(), [], "who never ran anything asks for nothing");
    let other = format!("{}-other", site.name());
    let identity = |attempt| Identity { execution: ExecutionId(uuid::Uuid::new_v4()), attempt };
    let (first, second) = (identity(1), identity(2));
    // One run creates the mark.
    assert_eq!(site.shell("true").await, Finish::succeeded());
    let mark = std::fs::read_to_string(site.bench.dir.path().join("containers")).unwrap().trim().to_owned();
    leave(&site, &format!("{}-a", site.name()), &mark, first).await;
    leave(&site, &format!("{}-b", site.name()), &mark, second).await;
    leave(&site, &other, "another", first).await;

    // The next run of the agent.
    let docker = Docker::new(Engine::read(&site.socket).unwrap(), site.bench.dir.path());
    let mut found = docker.remove_left_over().await.unwrap();
    found.sort_by_key(|identity| identity.attempt);
    assert_eq!(found, [first, second]);
    assert_eq!(names(&site, &mark).await, Vec::<String>::new());
    assert!(names(&site, "another").await.iter().any(|name| name.trim_start_matches('/') == other));
    assert_eq!(docker.remove_left_over().await.unwrap(), []);

    // An agent that could not sweep when it started sweeps before its first container.
    leave(&site, &format!("{}-c", site.name()), &mark, first).await;
    let docker = Docker::new(Engine::read(&site.socket).unwrap(), site.bench.dir.path());
    site.bench.forget_output();
    let finish = site.bench.run(&docker, "run", params(json!({"command": ["echo", "ran"]}))).await;
    assert_eq!(finish, Finish::succeeded());
    assert_eq!(names(&site, &mark).await, Vec::<String>::new());
    let force = RemoveContainerOptionsBuilder::default().force(true).build();
    site.client().remove_container(&other, Some(force)).await.unwrap();
}

async fn values_are_written_by_any_user(mut site: Site) {
    let file = site.dir("values").join("of this attempt");
    for user in ["root", "guest"] {
        std::fs::write(&file, "").unwrap();
        site.bench.values = Some(file.clone());
        let command = json!(["sh", "-c", "echo version=$(id -u) >> \"$DOWNBEAT_OUTPUT\""]);
        let finish = site.run(json!({"command": command, "user": user})).await;
        assert_eq!(finish, Finish::succeeded(), "{}", site.bench.stderr());
        let expected = if user == "root" { "version=0\n" } else { "version=1000\n" };
        assert_eq!(std::fs::read_to_string(&file).unwrap(), expected);
    }
}

async fn fifty_mebibytes_come_whole(site: Site) {
    let script = "i=0; while [ $i -lt 50 ]; do head -c 1048576 /dev/zero | tr '\\0' x; i=$((i+1)); done; echo end; echo end >&2";
    assert_eq!(site.shell(script).await, Finish::succeeded());
    let output = site.bench.stdout();
    assert_eq!(output.len(), 50 * 1024 * 1024 + 4);
    assert!(output.ends_with("xend\n") && output[..output.len() - 4].bytes().all(|byte| byte == b'x'));
    assert_eq!(site.bench.stderr(), "end\n");
}

async fn bytes_that_are_not_text_are_marked(site: Site) {
    assert_eq!(site.shell(r"printf 'a\377b\000c\303'").await, Finish::succeeded());
    assert_eq!(site.bench.stdout(), "a\u{fffd}b\u{fffd}c\u{fffd}");
}

async fn two_at_once_do_not_meet(site: Site) {
    let mut other = Site::at(site.kind, site.socket.clone());
    other.bench.identity = Identity { attempt: 2, ..site.bench.identity };
    let dir = site.dir("meeting");
    // Each waits for the other.
    let script = |own: &str, theirs: &str| {
        json!({"command": ["sh", "-c", format!("touch /m/{own}; while [ ! -e /m/{theirs} ]; do sleep 0.02; done; echo {own}")],
               "mounts": format!("{}:/m", dir.display())})
    };
    let (one, two) = tokio::join!(site.run(script("one", "two")), other.run(script("two", "one")));
    assert_eq!((one, two), (Finish::succeeded(), Finish::succeeded()));
    assert_eq!((site.bench.stdout().as_str(), other.bench.stdout().as_str()), ("one\n", "two\n"));
}

async fn a_container_that_another_program_removed_is_reported(site: Site) {
    let removed = async {
        site.until_said("ready").await;
        let force = RemoveContainerOptionsBuilder::default().force(true).build();
        site.client().remove_container(&site.name(), Some(force)).await.unwrap();
    };
    let (finish, ()) = tokio::join!(site.shell("echo ready; sleep 603"), removed);
    assert_eq!(finish.verdict, Verdict::Failed, "{finish:?}");
    let error = finish.error.unwrap();
    assert!(!error.contains('\n'), "{error}");
}

/// An engine that a test can end.
struct Own {
    dir: PathBuf,
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/containers")
}

impl Own {
    /// Paths of sockets have a short limit.
    fn new() -> Self {
        Self { dir: std::env::temp_dir().join(format!("downbeat-{}", std::process::id())) }
    }

    fn start(&self) -> String {
        let output = Command::new(script()).arg("start").arg(&self.dir).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn crash(&self) {
        assert!(Command::new(script()).arg("crash").arg(&self.dir).status().unwrap().success());
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = Command::new(script()).arg("stop").arg(&self.dir).status();
    }
}

#[tokio::test]
async fn an_engine_that_goes_away_is_named_and_its_container_removed_when_it_is_back() {
    // Shows early what is missing.
    Site::new(Kind::Docker);
    let own = Own::new();
    let mut site = Site::at(Kind::Docker, own.start());
    site.docker = Docker::new(Engine::read(&site.socket).unwrap(), site.bench.dir.path())
        .waiting(Duration::from_secs(1));
    let crash = async {
        site.until_said("ready").await;
        own.crash();
    };
    let (finish, ()) = tokio::join!(site.shell("echo ready; sleep 604"), crash);
    assert_eq!((finish.verdict, finish.exit_code), (Verdict::Failed, None));
    let error = finish.error.unwrap();
    let begin =
        format!("lost the container while it ran: cannot reach the container engine at {} (", site.socket);
    assert!(error.starts_with(&begin), "{error}");
    assert!(error.ends_with("could not be removed and may still run") && !error.contains('\n'), "{error}");

    // Unreachable from the start.
    let finish = site.shell("true").await;
    let error = finish.error.unwrap();
    assert!(error.starts_with(&format!("cannot reach the container engine at {} (", site.socket)), "{error}");

    own.start();
    let mark = std::fs::read_to_string(site.bench.dir.path().join("containers")).unwrap().trim().to_owned();
    assert_eq!(names(&site, &mark).await.len(), 1, "it is left over");
    assert_eq!(site.shell("echo again").await, Finish::succeeded());
    assert_eq!(names(&site, &mark).await, Vec::<String>::new());
}

#[tokio::test]
async fn an_engine_that_is_back_in_time_says_how_it_ended() {
    Site::new(Kind::Docker);
    let own = Own { dir: std::env::temp_dir().join(format!("downbeat-{}b", std::process::id())) };
    let site = Site::at(Kind::Docker, own.start());
    let crash = async {
        site.until_said("ready").await;
        own.crash();
        // It ends the running container.
        own.start();
    };
    let (finish, ()) = tokio::join!(site.shell("echo ready; sleep 605"), crash);
    assert_eq!((finish.verdict, finish.exit_code), (Verdict::Failed, Some(255)), "{finish:?}");
    assert!(site.gone().await);
}
