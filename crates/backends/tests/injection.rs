//! Hostile texts in every param of every action: what a child process, a file or a server received, or the text of the
//! refusal, as golden files. A param without a golden file fails.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use downbeat_backends::{
    Apt, Backend, Declared, DeclaredBackend, Docker, Engine, Exec, File, Http, Ping, Rke2, Systemd, Test,
};
use downbeat_core::backend::{Catalogue, ParamKind, ParamSchema, Params};
use futures_util::StreamExt;
use serde_json::{Value, json};
use support::{Bench, StandIn, params};

fn cases() -> Vec<(&'static str, String)> {
    let long = "x".repeat(200 * 1024);
    [
        ("semicolon", "; rm -rf /"),
        ("substitution", "$(id)"),
        ("backticks", "`id`"),
        ("and", "a && id"),
        ("pipe", "a | id"),
        ("redirection", "a > /etc/passwd"),
        ("double quote", "a\" b"),
        ("single quote", "a' b"),
        ("backslash", "a\\"),
        ("glob", "*"),
        ("home", "~"),
        ("variable", "$HOME"),
        ("newline", "a\nb"),
        ("carriage return", "a\r\nX-B: c"),
        ("tab", "a\tb"),
        ("dash", "-y"),
        ("long option", "--help"),
        ("end of options", "--"),
        ("apt option", "-o APT::Update::Pre-Invoke::=id"),
        ("trailing dash", "curl-"),
        ("nul", "a\0b"),
        ("empty", ""),
        ("blank", " "),
        ("right to left", "a\u{202e}b"),
        ("combining", "e\u{301}"),
        ("parent", "../"),
        ("parent inside", "a/../../etc/passwd"),
        ("format", "%s%n"),
        ("template", "{{ x }}"),
        ("placeholder", "{text}"),
        ("200 KiB", long.as_str()),
    ]
    .map(|(name, text)| (name, text.to_owned()))
    .to_vec()
}

/// Everything that backends could reach, created for them.
struct Site {
    bench: Bench,
    programs: BTreeMap<&'static str, StandIn>,
    files: PathBuf,
    server: Server,
}

impl Site {
    fn new() -> Self {
        let bench = Bench::new();
        let files = bench.root().join("files");
        let programs = ["apt-get", "systemctl", "rke2-install.sh", "bash", "program"]
            .into_iter()
            .map(|name| (name, bench.stand_in(name)))
            .collect();
        Self { programs, files, server: Server::start(), bench }
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs[name].program.clone()
    }

    fn backends(&self) -> Vec<Arc<dyn Backend>> {
        let ledger = || self.bench.ledger.clone();
        vec![
            Arc::new(Test),
            Arc::new(Ping),
            Arc::new(Exec { ledger: ledger() }),
            Arc::new(Apt { ledger: ledger(), program: self.program("apt-get") }),
            Arc::new(Systemd { ledger: ledger(), program: self.program("systemctl") }),
            Arc::new(Rke2 {
                ledger: ledger(),
                systemctl: self.program("systemctl"),
                installer: Some(self.program("rke2-install.sh")),
            }),
            Arc::new(File),
            Arc::new(Http::default()),
            Arc::new(DeclaredBackend { declared: self.declared(), ledger: ledger() }),
        ]
    }

    fn declared(&self) -> Declared {
        let declared = json!({"actions": {"do": {
            "argv": [self.program("program"), "{text}", "--embedded={embedded}", "{number}", "{flag}", "{list}",
                     "{span}", "{choice}", "--", "{after}", "{matched}"],
            "env": {"OWN": "a{variable}b"},
            "params": {
                "text": {"type": "text"},
                "embedded": {"type": "text"},
                "number": {"type": "integer"},
                "flag": {"type": "boolean"},
                "list": {"type": "texts"},
                "span": {"type": "duration"},
                "choice": {"type": "text", "choices": ["one", "two"]},
                "after": {"type": "text"},
                "matched": {"type": "text", "pattern": "[a-z]+"},
                "variable": {"type": "text"},
            },
        }}});
        Declared::read("own", &declared).unwrap()
    }

    /// Params with which the action runs.
    fn good(&self, backend: &str, action: &str) -> Params {
        // `bash` is searched in the task's own PATH.
        let path = self.programs["bash"].dir();
        params(&match (backend, action) {
            ("test", "echo") => json!({"message": "x"}),
            ("test", "sleep") => json!({"duration": "0s"}),
            ("test", "flaky") => json!({"succeed_on": 1}),
            ("exec", "run") => json!({"command": [self.program("program")], "env": {"PATH": path}}),
            ("exec", "shell") => json!({"command": "x", "env": {"PATH": path}}),
            ("apt", "install" | "remove") => json!({"package": ["curl"]}),
            ("systemd", _) => json!({"unit": "nginx"}),
            ("file", "write") => json!({"path": self.files.join("file"), "content": "good"}),
            ("file", _) => json!({"path": self.files.join("file")}),
            ("http", _) => json!({"url": self.server.url("")}),
            _ => json!({}),
        })
    }

    /// The ways in which a param can contain a text.
    fn ways(&self, name: &str, param: &ParamSchema, text: &str) -> Vec<(&'static str, Value)> {
        let path = self.programs["bash"].dir();
        match (name, param.kind) {
            ("exec.run.command", _) => {
                vec![("as a line", json!(text)), ("as an argument", json!([self.program("program"), text]))]
            }
            (_, ParamKind::Map) if name.starts_with("exec.") => vec![
                ("as a value", json!({"PATH": path, "X": text})),
                ("as a name", json!({"PATH": path, text: "x"})),
            ],
            (_, ParamKind::Map) => {
                vec![("as a value", json!({"X-A": text})), ("as a name", json!({text: "x"}))]
            }
            ("http.request.expect", _) => vec![
                ("as it is", json!(text)),
                ("as a status", json!({"status": text})),
                ("as a text", json!({"contains": text})),
            ],
            ("http.request.url", _) => {
                vec![("as it is", json!(text)), ("as a path", json!(self.server.url(text)))]
            }
            (_, ParamKind::Text) if param.name == "path" || param.name == "artifact_path" => vec![
                ("as it is", json!(text)),
                ("as a name", json!(format!("{}/{text}", self.files.display()))),
            ],
            (_, ParamKind::Texts) => vec![("as it is", json!(text)), ("in a list", json!(["good", text]))],
            _ => vec![("as it is", json!(text))],
        }
    }

    async fn effect(&self, backend: &dyn Backend, action: &str, given: &Params) -> String {
        let _ = fs::remove_dir_all(&self.files);
        fs::create_dir(&self.files).unwrap();
        fs::write(self.files.join("file"), "before").unwrap();
        self.bench.forget_output();
        let finish = match self.bench.try_run(backend, action, given).await {
            Ok(finish) => finish,
            Err(refused) => {
                assert_eq!(self.seen(given), Vec::<String>::new(), "what is refused is not done");
                return format!("refused: {refused}");
            }
        };
        let mut report = self.seen(given);
        match backend.schema().name.as_str() {
            "test" | "ping" => report.push(format!("output: {}", quoted(&self.bench.stdout()))),
            "file" if action == "stat" => report.push(format!("output: {}", exists(&self.bench.stdout()))),
            _ => {}
        }
        report.extend(finish.error.map(|error| format!("failed: {error}")));
        report.join(" ")
    }

    /// The result.
    fn seen(&self, given: &Params) -> Vec<String> {
        let mut report = Vec::new();
        for stand_in in self.programs.values() {
            let Some(seen) = stand_in.seen() else { continue };
            let argv: Vec<String> = seen.argv.iter().map(|word| quoted(word)).collect();
            report.push(format!("argv: [{}]", argv.join(", ")));
            for (name, value) in &seen.environment {
                let inherited = std::env::var_os(name).is_some_and(|own| own == value.as_str());
                if !inherited && !["DOWNBEAT_EXECUTION", "PATH"].contains(&name.as_str()) {
                    report.push(format!("env: {}={}", quoted(name), quoted(value)));
                }
            }
            if given.contains_key("working_dir") {
                report.push(format!("directory: {}", quoted(&seen.directory)));
            }
            if !seen.input.is_empty() {
                report.push(format!("input: {}", quoted(&seen.input)));
            }
        }
        report.extend(self.server.requests().iter().map(|request| format!("request: {}", quoted(request))));
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.files).unwrap().flatten() {
            let content = fs::read_to_string(entry.path()).unwrap();
            let name = entry.file_name().into_string().unwrap();
            if (name.as_str(), content.as_str()) != ("file", "before") {
                files.push(format!("file: {} {}", quoted(&name), quoted(&content)));
            }
        }
        if !self.files.join("file").exists() {
            files.push("removed: \"file\"".to_owned());
        }
        files.sort();
        report.extend(files);
        report
    }

    /// Without parts that differ between runs, and in ASCII only: people read golden files.
    fn plain(&self, text: &str) -> String {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = text
            .replace(self.bench.root().to_str().unwrap(), "/DIR")
            .replace(&self.server.address, "HOST")
            .replace(crates.to_str().unwrap(), "/CRATES")
            .replace(concat!("downbeat/", env!("CARGO_PKG_VERSION")), "downbeat/VERSION");
        text.chars().fold(String::new(), |mut plain, c| {
            if c.is_ascii() && (c == ' ' || !c.is_ascii_control()) {
                plain.push(c);
            } else {
                plain.extend(c.escape_default());
            }
            plain
        })
    }
}

/// As JSON; long ones by their length.
fn quoted(text: &str) -> String {
    match text.len() {
        0..=1000 => json!(text).to_string(),
        bytes => {
            let end = text.trim_end_matches('x').len();
            format!("{} and {} times x", json!(text[..end]), bytes - end)
        }
    }
}

fn exists(line: &str) -> String {
    let report: Value = serde_json::from_str(line).unwrap();
    json!({"path": report["path"], "exists": report["exists"]}).to_string()
}

/// Records every request as it was on the wire.
struct Server {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = requests.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut request = Vec::new();
                let mut buffer = [0; 16 * 1024];
                while !is_whole(&request) {
                    match stream.read(&mut buffer) {
                        Ok(read @ 1..) => request.extend_from_slice(&buffer[..read]),
                        _ => break,
                    }
                }
                kept.lock().unwrap().push(String::from_utf8_lossy(&request).into_owned());
                let _ =
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
            }
        });
        Self { address, requests }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn is_whole(request: &[u8]) -> bool {
    let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
    request.len() >= end + 4 + length.unwrap_or(0)
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/injection")
}

#[tokio::test]
async fn hostile_texts_reach_their_place_as_they_are_or_are_refused_by_name() {
    let site = Site::new();
    let mut wrong = Vec::new();
    for backend in site.backends() {
        let schema = backend.schema();
        for action in &schema.actions {
            for param in &action.params {
                let name = format!("{}.{}.{}", schema.name, action.name, param.name);
                let mut report = String::new();
                for (case, text) in cases() {
                    for (way, value) in site.ways(&name, param, &text) {
                        let mut given = site.good(&schema.name, &action.name);
                        given.insert(param.name.clone(), value);
                        let effect = site.effect(backend.as_ref(), &action.name, &given).await;
                        writeln!(report, "{case}, {way} -> {}", site.plain(&effect)).unwrap();
                    }
                }
                wrong.extend(differs(&name, &report));
            }
        }
    }
    assert!(wrong.is_empty(), "update them with UPDATE_GOLDEN=1 and read the diff\n{}", wrong.join("\n"));
}

/// Returns the differences from the golden file of a param, or writes the file.
fn differs(name: &str, report: &str) -> Option<String> {
    let file = golden().join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(golden()).unwrap();
        fs::write(&file, report).unwrap();
        return None;
    }
    (fs::read_to_string(&file).ok().as_deref() != Some(report)).then(|| difference(&file, report))
}

#[test]
fn every_param_has_a_golden_file_and_every_file_a_param() {
    let schemas = Site::new().backends().into_iter().map(|backend| backend.schema());
    let schemas = schemas.chain([Catalogue::builtin().backend("docker").unwrap().clone()]);
    let expected: BTreeSet<String> = schemas
        .flat_map(|schema| {
            let name = schema.name;
            schema.actions.into_iter().flat_map(move |action| {
                let of_action = format!("{name}.{}", action.name);
                action.params.into_iter().map(move |param| format!("{of_action}.{}.txt", param.name))
            })
        })
        .collect();
    let found: BTreeSet<String> = fs::read_dir(golden())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, expected);
}

/// Prints its arguments, each in brackets.
const SAYS: &str = "printf '[%s]' \"$@\"; printf ' X=[%s] in [%s]' \"$X\" \"$(pwd)\"; \
    awk '$5 ~ \"^/m\" { printf \" mounted [%s]\", $5 }' /proc/self/mountinfo; ls /m 2>/dev/null || :";

/// The ways in which a param of `docker run` can contain a text.
fn docker_ways(param: &ParamSchema, files: &Path, text: &str) -> Vec<(&'static str, Value)> {
    match param.name.as_str() {
        "command" => vec![("as a line", json!(text)), ("as an argument", json!(["a", text]))],
        "entrypoint" => {
            vec![("as a line", json!(text)), ("as an argument", json!(["sh", "-c", SAYS, "x", text]))]
        }
        "env" => vec![("as a value", json!({"X": text})), ("as a name", json!({text: "x"}))],
        "mounts" => vec![
            ("as it is", json!(text)),
            ("as a source", json!(format!("{}/{text}:/m", files.display()))),
            ("as a target", json!(format!("{}:/m/{text}", files.display()))),
            ("as a mode", json!(format!("{}:/m:{text}", files.display()))),
        ],
        "working_dir" => vec![("as it is", json!(text)), ("as a name", json!(format!("/tmp/{text}")))],
        _ => vec![("as it is", json!(text))],
    }
}

/// Returns the effect of a text on a container. Each call has its own bench, so that several can run at once.
async fn docker_effect(engine: &Engine, param: &ParamSchema, text: &str, way: &str, index: usize) -> String {
    let bench = Bench::new();
    let files = bench.root().join("files");
    fs::create_dir(&files).unwrap();
    // Creates the source if the host can have it.
    if fs::create_dir(files.join(text)).is_ok() {
        let _ = fs::write(files.join(text).join("here"), "");
    }
    let mut given = params(&json!({
        "image": "downbeat-busybox:1", "pull": "never", "network": "none",
        "entrypoint": ["sh", "-c", SAYS, "x"], "command": ["a"],
    }));
    let (_, value) = docker_ways(param, &files, text).swap_remove(index);
    given.insert(param.name.clone(), value);
    let docker = Docker::new(engine.clone(), bench.dir.path());
    let effect = match bench.try_run(&docker, "run", &given).await {
        Err(refused) => format!("refused: {refused}"),
        Ok(finish) => {
            let stdout = bench.stdout();
            let stdout = (!stdout.is_empty()).then(|| format!("stdout: {}", quoted(&stdout)));
            // The text of an engine's failure differs between engines.
            let error = finish.error.map(|error| match error.split_once(" the container: ") {
                Some((what, _)) => format!("failed: {what} the container"),
                None => format!("failed: {error}"),
            });
            stdout.into_iter().chain(error).collect::<Vec<_>>().join(" ")
        }
    };
    let effect = effect.replace(bench.root().to_str().unwrap(), "/DIR");
    format!("{way} -> {effect}")
}

#[tokio::test]
async fn hostile_texts_reach_containers_as_they_are_or_are_refused_by_name() {
    let socket = std::env::var("DOWNBEAT_TEST_DOCKER").expect(
        "needs Docker: run `make test` as root, or `make containers` and set DOWNBEAT_TEST_DOCKER to what it says",
    );
    let engine = Engine::read(&socket).unwrap();
    let schema = Catalogue::builtin().action("docker", "run").unwrap().clone();
    let site = Site::new();
    let mut wrong = Vec::new();
    for param in &schema.params {
        let cases = cases();
        let asked = cases.iter().flat_map(|(case, text)| {
            let ways = docker_ways(param, Path::new("/"), text);
            ways.into_iter().enumerate().map(move |(index, (way, _))| (case, text, way, index))
        });
        let report: Vec<String> = futures_util::stream::iter(asked)
            .map(|(case, text, way, index)| {
                let effect = docker_effect(&engine, param, text, way, index);
                async move { format!("{case}, {}", effect.await) }
            })
            .buffered(4)
            .collect()
            .await;
        let report: String = report.iter().map(|line| format!("{}\n", site.plain(line))).collect();
        wrong.extend(differs(&format!("docker.run.{}", param.name), &report));
    }
    assert!(wrong.is_empty(), "regenerate them with UPDATE_GOLDEN=1 and read the diff\n{}", wrong.join("\n"));
}

fn difference(file: &Path, report: &str) -> String {
    let name = file.file_name().unwrap().to_string_lossy();
    let Ok(golden) = fs::read_to_string(file) else { return format!("{name}: there is none") };
    let lines = golden.lines().zip(report.lines()).find(|(golden, report)| golden != report);
    format!("{name}: {lines:?}")
}

#[test]
fn every_built_in_backend_is_attacked() {
    let mut attacked: BTreeSet<String> =
        Site::new().backends().iter().map(|backend| backend.schema().name).collect();
    attacked.insert("docker".to_owned());
    for backend in Catalogue::builtin().backends() {
        assert!(attacked.contains(&backend.name), "{} is not", backend.name);
    }
}
