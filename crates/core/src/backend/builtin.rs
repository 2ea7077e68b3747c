//! Owns the built-in backends as data: their actions, params and accepted values. The `backends` crate implements them.

use super::schema::ParamKind::{self, Any, Argv, Boolean, Duration, Integer, Map, Text, Texts};
use super::schema::{ActionSchema, BackendSchema, ParamSchema};
use crate::limits;

struct Builtin {
    name: &'static str,
    /// Whether it could do anything on a host, or reveal its credentials.
    needs_allow: bool,
    declare: fn(&str) -> BackendSchema,
}

/// The backends that every version of downbeat knows.
const BUILTIN: [Builtin; 9] = [
    Builtin { name: "test", needs_allow: false, declare: test },
    Builtin { name: "ping", needs_allow: false, declare: ping },
    Builtin { name: "exec", needs_allow: true, declare: exec },
    Builtin { name: "apt", needs_allow: false, declare: apt },
    Builtin { name: "systemd", needs_allow: false, declare: systemd },
    Builtin { name: "rke2", needs_allow: false, declare: rke2 },
    Builtin { name: "file", needs_allow: true, declare: file },
    Builtin { name: "docker", needs_allow: true, declare: docker },
    Builtin { name: "http", needs_allow: true, declare: http },
];

/// Returns whether an agent offers the backend only when its settings allow it by name.
pub fn needs_allow(backend: &str) -> bool {
    all_that_need_allow().any(|name| name == backend)
}

/// Returns the names of these backends.
pub fn all_that_need_allow() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().filter(|backend| backend.needs_allow).map(|backend| backend.name)
}

/// Returns the probable reason why a node lacks a backend, to append to its name; empty for most.
pub fn lacking_hint(backend: &str) -> String {
    match backend {
        "docker" => " (its agent runs without --allow docker, or found no container engine)".to_owned(),
        name if needs_allow(name) => format!(" (its agent runs without --allow {name})"),
        _ => String::new(),
    }
}

impl BackendSchema {
    fn new(name: &str, help: &str) -> Self {
        Self { name: name.to_owned(), help: help.to_owned(), actions: Vec::new() }
    }

    /// Declares an idempotent action: running it twice leaves the host as running it once.
    fn same_twice(self, name: &str) -> Self {
        self.action_that(name, true)
    }

    fn once(self, name: &str) -> Self {
        self.action_that(name, false)
    }

    fn action_that(mut self, name: &str, idempotent: bool) -> Self {
        self.actions.push(ActionSchema { name: name.to_owned(), idempotent, params: Vec::new() });
        self
    }

    /// Declares a param of the last action.
    fn with(mut self, param: ParamSchema) -> Self {
        self.actions.last_mut().expect("params come after their action").params.push(param);
        self
    }
}

fn required(name: &str, kind: ParamKind, help: &str) -> ParamSchema {
    ParamSchema { required: true, ..optional(name, kind, help) }
}

/// Declares an optional param. A text is an argument of a program by default.
fn optional(name: &str, kind: ParamKind, help: &str) -> ParamSchema {
    let bounded = !matches!(kind, Integer | Boolean | Duration);
    let max_bytes = bounded.then_some(limits::ARGUMENT_BYTES as u64);
    ParamSchema { help: help.to_owned(), max_bytes, ..ParamSchema::new(name, kind) }
}

impl ParamSchema {
    fn pattern(self, pattern: &str) -> Self {
        Self { pattern: Some(pattern.to_owned()), ..self }
    }

    fn names(self, pattern: &str) -> Self {
        Self { name_pattern: Some(pattern.to_owned()), ..self }
    }

    fn bytes(self, most: usize) -> Self {
        Self { max_bytes: Some(most as u64), ..self }
    }

    fn choices(self, choices: &[&str]) -> Self {
        Self { choices: choices.iter().map(|choice| (*choice).to_owned()).collect(), ..self }
    }

    fn between(self, min: i64, max: i64) -> Self {
        Self { min: Some(min), max: Some(max), ..self }
    }
}

/// A name by Debian's policy, with an optional architecture. apt-get reads a trailing `-` as "remove" and a trailing
/// `+` as "install", whatever the action; only names such as `g++` end in plus signs.
macro_rules! debian_package {
    () => {
        r"[a-z0-9][a-z0-9+.-]*(?:[a-z0-9]|\+\+)(?::[a-z0-9-]*[a-z0-9])?"
    };
}
const PACKAGE: &str = debian_package!();
/// A package with an optional `=VERSION` or `/RELEASE`, which do not end in `-` or `+` either.
const PACKAGE_AND_VERSION: &str = concat!(
    debian_package!(),
    r"(?:=[0-9A-Za-z](?:[0-9A-Za-z.+~:-]*[0-9A-Za-z])?|/[0-9A-Za-z](?:[0-9A-Za-z._+~-]*[0-9A-Za-z])?)?"
);
/// A unit by systemd's rules: letters, digits, `:_.-`, escapes such as `\x2d`, and one `@` of a template. No paths and
/// no globs, although systemctl would accept both.
const UNIT: &str = r"(?:[A-Za-z0-9:_.]|\\x[0-9a-f]{2})(?:[A-Za-z0-9:_.-]|\\x[0-9a-f]{2})*(?:@(?:[A-Za-z0-9:_.-]|\\x[0-9a-f]{2})*)?";

/// An unambiguous absolute path: no `.` and `..`, no doubled or trailing slash, no control characters.
macro_rules! path {
    () => {
        r"(?:/(?:[^/.\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.[^/.\x00-\x1f\x7f][^/\x00-\x1f\x7f]*|\.\.[^/\x00-\x1f\x7f]+))+"
    };
}
const PATH: &str = path!();
const PATH_OR_ROOT: &str = concat!("/|", path!());
/// The same without `:`, which separates the parts of a mount.
macro_rules! mounted_path {
    () => {
        r"(?:/(?:[^/.:\x00-\x1f\x7f][^/:\x00-\x1f\x7f]*|\.[^/.:\x00-\x1f\x7f][^/:\x00-\x1f\x7f]*|\.\.[^/:\x00-\x1f\x7f]+))+"
    };
}
/// A path of the host or the name of a volume, the path in the container, and whether it is writable.
const MOUNT: &str =
    concat!("(?:", mounted_path!(), "|[A-Za-z0-9][A-Za-z0-9_.-]+):", mounted_path!(), "(?::r[ow])?");
/// The distribution's reference grammar: `[HOST[:PORT]/]NAME[/NAME]…[:TAG][@sha256:DIGEST]`.
const IMAGE: &str = concat!(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/)?",
    r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*)*",
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
);
const VARIABLE: &str = "[A-Za-z_][A-Za-z0-9_.-]*";
const BYTES: &str = "[1-9][0-9]{0,15}(?:[bB]|[kKmMgG](?:i?[bB])?)?";
/// A number greater than zero.
const PROCESSORS: &str = r"0\.[0-9]{0,8}[1-9]|[1-9][0-9]{0,3}(?:\.[0-9]{1,9})?";
const NETWORK: &str = "[A-Za-z0-9][A-Za-z0-9_.-]*";
const CONTAINER_USER: &str = "[A-Za-z0-9_][A-Za-z0-9_.-]*(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?";
/// A user, a group or their number, without characters that are special to `chown` and name services.
const OWNER: &str = r"[A-Za-z0-9_][A-Za-z0-9_.-]*\$?(?::[A-Za-z0-9_][A-Za-z0-9_.-]*\$?)?";
const RKE2_VERSION: &str = r"v[0-9]+\.[0-9]+\.[0-9]+(?:-[0-9a-z.]+)?(?:\+rke2r[0-9]+)?";
const RKE2_CHANNEL: &str = r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?";
const URL: &str = r"https?://[^\x00-\x20\x7f]+";
/// A bearer token by RFC 6750.
const TOKEN: &str = "[A-Za-z0-9._~+/-]+=*";
/// A token by RFC 9110.
const HEADER_NAME: &str = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+";
/// A tab is the only control character that a header may contain; a line end would start another header.
const HEADER: &str = r"[^\x00-\x08\x0a-\x1f\x7f]*";

/// A description of each pattern. Users read it when a value is refused.
const FORMS: &[(&str, &str)] = &[
    (PACKAGE, "the name of a Debian package, such as curl or libc6:amd64"),
    (PACKAGE_AND_VERSION, "a Debian package as NAME, NAME=VERSION or NAME/RELEASE, such as curl=7.88.1-10"),
    (UNIT, "the name of a systemd unit, such as nginx, backup.timer or getty@tty1, and not a path or a glob"),
    (PATH, "an absolute path without . and .., doubled or trailing slashes"),
    (PATH_OR_ROOT, "an absolute path without . and .., doubled or trailing slashes"),
    (FILE_MODE, "three or four octal digits in quotes, such as \"0644\""),
    (OWNER, "USER or USER:GROUP, such as www-data:www-data"),
    (RKE2_VERSION, "a release such as v1.31.2+rke2r1"),
    (RKE2_CHANNEL, "the name of a channel, such as stable or v1.31"),
    (IMAGE, "an image such as alpine:3 or registry.example/tools/build@sha256:…"),
    (VARIABLE, "letters, digits, `_`, `.` and `-`, and begin with a letter or `_`"),
    (
        MOUNT,
        "SOURCE:TARGET, SOURCE:TARGET:ro or SOURCE:TARGET:rw; SOURCE is an absolute path or a volume's name",
    ),
    (BYTES, "a size such as 512m or 2g"),
    (PROCESSORS, "a number of processors above 0, such as 2 or 0.5"),
    (NETWORK, "none, host, bridge or a network's name"),
    (CONTAINER_USER, "USER or USER:GROUP, names of the image or numbers"),
    (URL, "a URL that begins with http:// or https://, with blanks escaped"),
    (HEADER, "one line without control characters"),
    (HEADER_NAME, "the name of a header, such as Content-Type"),
    (TOKEN, "a token of letters, digits and ._~+/-, without blanks"),
];

/// Returns the description of a built-in backend's pattern.
pub(super) fn form(pattern: &str) -> Option<&'static str> {
    FORMS.iter().find(|(known, _)| *known == pattern).map(|(_, form)| *form)
}

const FILE_MODE: &str = "[0-7]{3,4}";

pub(super) fn schemas() -> impl Iterator<Item = BackendSchema> {
    BUILTIN.iter().map(|Builtin { name, declare, .. }| declare(name))
}

fn ping(name: &str) -> BackendSchema {
    BackendSchema::new(name, "Checks that the agent responds").same_twice("ping")
}

fn test(name: &str) -> BackendSchema {
    BackendSchema::new(name, "Actions with a chosen result, for tests and trials")
        .same_twice("noop")
        .same_twice("echo")
        .with(required("message", Text, "what to print"))
        .same_twice("sleep")
        .with(required("duration", Duration, "how long to sleep"))
        .once("fail")
        .with(optional("message", Text, "what to print before failing"))
        .with(optional("exit_code", Integer, "the exit code to fail with").between(0, 255))
        .once("flaky")
        .with(required("succeed_on", Integer, "the first attempt that succeeds, from 1"))
}

fn exec(name: &str) -> BackendSchema {
    let env = || optional("env", Map, "environment variables");
    let working_dir = || optional("working_dir", Text, "the directory to run in").bytes(limits::PATH_BYTES);
    BackendSchema::new(name, "Programs and scripts; only with the agent's `--allow exec`")
        .once("run")
        .with(required("command", Argv, "the program and its arguments; no shell reads them"))
        .with(optional("args", Texts, "more arguments, passed unchanged"))
        .with(env())
        .with(working_dir())
        .with(optional("stdin", Text, "what the program reads").bytes(limits::PARAMS_BYTES))
        .once("shell")
        .with(required("command", Text, "a line or a script for bash -c"))
        .with(env())
        .with(working_dir())
        .with(optional("stdin", Text, "what the script reads").bytes(limits::PARAMS_BYTES))
}

fn apt(name: &str) -> BackendSchema {
    let versioned = "packages, as NAME, NAME=VERSION or NAME/RELEASE";
    BackendSchema::new(name, "Debian packages, by apt-get")
        .same_twice("install")
        .with(required("package", Texts, versioned).pattern(PACKAGE_AND_VERSION).bytes(512))
        .same_twice("remove")
        .with(required("package", Texts, "packages, as NAME").pattern(PACKAGE).bytes(512))
        .with(optional("purge", Boolean, "also remove their configuration"))
        .same_twice("update")
        .same_twice("upgrade")
}

fn systemd(name: &str) -> BackendSchema {
    let help = "a unit such as nginx, backup.timer or getty@tty1";
    let unit = || required("unit", Text, help).pattern(UNIT).bytes(255);
    BackendSchema::new(name, "systemd units, by systemctl")
        .same_twice("start")
        .with(unit())
        .same_twice("stop")
        .with(unit())
        .once("restart")
        .with(unit())
        .once("reload")
        .with(unit())
        .same_twice("enable")
        .with(unit())
        .same_twice("disable")
        .with(unit())
        .same_twice("status")
        .with(unit())
}

fn rke2(name: &str) -> BackendSchema {
    let mode = "server or agent; default: server";
    let mode = || optional("mode", Text, mode).choices(&["server", "agent"]);
    let channel = "the release channel, such as stable";
    let artifacts = "a directory with the release, for hosts without network";
    BackendSchema::new(name, "The RKE2 service, by systemctl and the installer on the host")
        .same_twice("install")
        .with(mode())
        .with(optional("version", Text, "a release such as v1.31.2+rke2r1").pattern(RKE2_VERSION).bytes(64))
        .with(optional("channel", Text, channel).pattern(RKE2_CHANNEL).bytes(64))
        .with(optional("artifact_path", Text, artifacts).pattern(PATH).bytes(limits::PATH_BYTES))
        .same_twice("start")
        .with(mode())
        .same_twice("stop")
        .with(mode())
        .same_twice("status")
        .with(mode())
}

fn file(name: &str) -> BackendSchema {
    let path = "an absolute path without . and ..";
    let path = || required("path", Text, path).pattern(PATH).bytes(limits::PATH_BYTES);
    BackendSchema::new(name, "Files on the host; only with the agent's `--allow file`")
        .same_twice("write")
        .with(path())
        .with(required("content", Text, "the whole content of the file").bytes(limits::PARAMS_BYTES))
        .with(optional("mode", Text, "octal digits in quotes such as \"0644\"").pattern(FILE_MODE))
        .with(optional("owner", Text, "USER or USER:GROUP").pattern(OWNER).bytes(128))
        .same_twice("absent")
        .with(path())
        .same_twice("stat")
        .with(path().pattern(PATH_OR_ROOT))
}

fn docker(name: &str) -> BackendSchema {
    let help = "Containers of Docker or Podman, by its socket; only with the agent's `--allow docker`";
    let image = "an image such as alpine:3 or registry.example/tools/build@sha256:…";
    let command = "the program and its arguments; default: the image's own";
    let mounts =
        "SOURCE:TARGET or SOURCE:TARGET:ro; a source is an absolute path of the host or a volume's name";
    let memory = "the memory limit, swap included, such as 512m or 2g";
    let working_dir = "the directory to run in, an absolute path in the container";
    let user = "USER or USER:GROUP, names of the image or numbers";
    let network = "none, host, bridge or a network's name; default: the engine's";
    let pull = "when to ask the registry; default: missing";
    BackendSchema::new(name, help)
        .once("run")
        .with(required("image", Text, image).pattern(IMAGE).bytes(512))
        .with(optional("command", Argv, command))
        .with(optional("entrypoint", Argv, "instead of the image's own; `command` comes after it"))
        .with(optional("env", Map, "environment variables").names(VARIABLE))
        .with(optional("mounts", Texts, mounts).pattern(MOUNT).bytes(limits::PATH_BYTES))
        .with(optional("memory", Any, memory).pattern(BYTES).bytes(32))
        .with(
            optional("cpus", Any, "the limit of processors, such as 2 or 0.5").pattern(PROCESSORS).bytes(32),
        )
        .with(optional("pids", Integer, "the limit of processes").between(1, 4_194_304))
        .with(optional("working_dir", Text, working_dir).pattern(PATH_OR_ROOT).bytes(limits::PATH_BYTES))
        .with(optional("user", Text, user).pattern(CONTAINER_USER).bytes(128))
        .with(optional("network", Text, network).pattern(NETWORK).bytes(128))
        .with(optional("read_only", Boolean, "only mounts are writable"))
        .with(optional("pull", Text, pull).choices(&["never", "missing", "always"]))
}

fn http(name: &str) -> BackendSchema {
    let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let query = "names and values that are added to the URL, escaped";
    let bearer = "a token for the header Authorization";
    let json = "a value that is sent as JSON, instead of `body`";
    let timeout = "for the whole exchange; default: the task's timeout";
    let follow = "false: a redirect is the response; default: true";
    let expect = "the conditions of success: {status: [200, 2xx], contains: TEXT, headers: {NAME: TEXT}, \
                  json: {NAME: VALUE}}; default: 2xx";
    let line = 8 * 1024;
    BackendSchema::new(name, "HTTP requests; only with the agent's `--allow http`")
        .once("request")
        .with(required("url", Text, "http://… or https://…, blanks escaped").pattern(URL).bytes(line))
        .with(optional("method", Text, "default: GET").choices(&methods))
        .with(optional("headers", Map, "headers, a line each").pattern(HEADER).names(HEADER_NAME).bytes(line))
        .with(optional("query", Map, query).bytes(line))
        .with(optional("bearer", Text, bearer).pattern(TOKEN).bytes(line))
        .with(optional("body", Text, "what is sent").bytes(limits::PARAMS_BYTES))
        .with(optional("json", Any, json).bytes(limits::PARAMS_BYTES))
        .with(optional("timeout", Duration, timeout))
        .with(optional("follow", Boolean, follow))
        .with(optional("expect", Any, expect))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Pattern;

    fn actions() -> impl Iterator<Item = (String, ActionSchema)> {
        schemas().flat_map(|backend| {
            let name = backend.name;
            backend.actions.into_iter().map(move |action| (format!("{name} {}", action.name), action))
        })
    }

    #[test]
    fn only_what_may_be_done_twice_is_idempotent() {
        let twice: Vec<String> =
            actions().filter(|(_, action)| action.idempotent).map(|(name, _)| name).collect();
        assert_eq!(
            twice.join(", "),
            "test noop, test echo, test sleep, ping ping, apt install, apt remove, apt update, apt upgrade, \
             systemd start, systemd stop, systemd enable, systemd disable, systemd status, rke2 install, rke2 start, rke2 stop, rke2 status, \
             file write, file absent, file stat"
        );
    }

    #[test]
    fn every_text_has_a_bound_and_every_pattern_is_one() {
        for (name, action) in actions() {
            for param in &action.params {
                let bounded = match param.kind {
                    ParamKind::Integer | ParamKind::Boolean | ParamKind::Duration => true,
                    ParamKind::Text
                    | ParamKind::Texts
                    | ParamKind::Argv
                    | ParamKind::Map
                    | ParamKind::Any => {
                        param.max_bytes.is_some_and(|most| most <= limits::PARAMS_BYTES as u64)
                    }
                };
                assert!(bounded, "{name} {}", param.name);
                assert!(
                    param.pattern.iter().chain(&param.name_pattern).all(|p| Pattern::new(p).is_ok()),
                    "{name} {}",
                    param.name
                );
            }
        }
    }

    fn check(pattern: &str, good: &[&str], bad: &[&str]) {
        let pattern = Pattern::new(pattern).unwrap();
        for text in good {
            assert!(pattern.matches(text), "{text:?} is refused");
        }
        for text in bad {
            assert!(!pattern.matches(text), "{text:?} passes");
        }
    }

    #[test]
    fn images_mounts_and_limits_hold_nothing_else() {
        let digest = format!("alpine@sha256:{}", "0a".repeat(32));
        check(
            IMAGE,
            &["alpine", "alpine:3.20", "library/a_b__c-d.e", "localhost:5000/team/x:v1_2-rc.1", &digest],
            &[
                "",
                "-alpine",
                "Alpine",
                "alpine:",
                "alpine:-1",
                "a//b",
                "/a",
                "a/",
                "a b",
                "a@sha256:0",
                "a\n",
                "../a",
            ],
        );
        check(
            MOUNT,
            &["/a:/b", "/a b/.c:/d:ro", "/a:/b:rw", "cache:/var/cache", "a.b_c-d:/x"],
            &[
                "",
                "/a",
                "a:b",
                "/:/b",
                "/a:/",
                "/a:/b:",
                "/a:/b:z",
                "./a:/b",
                "/a/../b:/c",
                "-v:/a",
                "/a:/b:ro:ro",
                "/a\n:/b",
            ],
        );
        check(
            BYTES,
            &["1", "512m", "2g", "64MiB", "7b", "1kB"],
            &["", "0", "-1", "1.5g", "1t", "m", "1 m", "12345678901234567"],
        );
        check(
            PROCESSORS,
            &["1", "0.5", "2.25", "64", "0.001"],
            &["", "0", "0.0", ".5", "-1", "1e3", "1.", "1,5"],
        );
        check(NETWORK, &["none", "host", "my_net-1.x"], &["", "-x", "container:x", "a b"]);
        check(CONTAINER_USER, &["root", "1000:1000", "a.b-c"], &["", "-u", ":0", "a:", "a:b:c", "$x"]);
    }

    #[test]
    fn packages_are_named_by_debians_policy() {
        let names =
            ["curl", "g++", "libstdc++6", "python3.11", "0ad", "libc6:i386", "linux-image-6.1.0-13-amd64"];
        let bad = [
            "",
            "a",
            "-y",
            "--purge",
            "Curl",
            "curl-",
            "curl+",
            "curl ",
            " curl",
            "a b",
            "./x.deb",
            "/x.deb",
            "x*",
            "?installed",
            "~i",
            "^desktop",
            "curl:",
            "curl\n",
            "libc6:-",
            "c\u{fc}rl",
        ];
        check(PACKAGE, &names, &bad);
        check(PACKAGE, &[], &["curl=1.0", "curl/stable"]);
        check(PACKAGE_AND_VERSION, &names, &bad);
        check(
            PACKAGE_AND_VERSION,
            &[
                "curl=7.88.1-10+deb12u5",
                "vim=2:9.0.1378-2",
                "x2=1~rc1",
                "curl/bookworm-backports",
                "libc6:i386=2.36",
            ],
            &[
                "curl=",
                "curl/",
                "curl=1.0-",
                "curl=1.0+",
                "curl/stable-",
                "curl=1/stable",
                "curl=$(id)",
                "curl=*",
            ],
        );
    }

    #[test]
    fn paths_are_absolute_and_say_what_they_mean() {
        let good = ["/a", "/etc/motd", "/a b/ü", "/.hidden", "/...", "/a/..b", "/a/b..", "/*;$(x)"];
        let bad = [
            "", "/", "a", "./a", "/a/", "//a", "/a//b", "/.", "/..", "/a/../b", "/a/.", "/a\n", "/a\0", "~/a",
        ];
        check(PATH, &good, &bad);
        check(PATH_OR_ROOT, &["/", "/a"], &["", "//", "/.."]);
    }

    #[test]
    fn owners_versions_and_urls_hold_nothing_else() {
        check(
            OWNER,
            &["root", "www-data:adm", "0:0", "host$"],
            &["", ":adm", "root:", "-R", "a b", "a:b:c", "../x"],
        );
        check(
            RKE2_VERSION,
            &["v1.31.2+rke2r1", "v1.31.0-rc1+rke2r1", "v1.31.2"],
            &["", "1.31.2", "v1.31", "v1.31.2+rke2r1 x", "v1.31.2/../x", "v1.31.2;id"],
        );
        check(RKE2_CHANNEL, &["stable", "v1.31"], &["", "-x", "a/b", "a b", "$(id)", "x-"]);
        check(
            URL,
            &["http://x", "https://x/y?z=%20#f"],
            &["", "ftp://x", "http://", "http://x y", "http://x\r\n", "file:///x"],
        );
        check(HEADER_NAME, &["X-A", "a"], &["", "a b", "a:", "a\r\nb", "é", "a/b", "a\n"]);
        check(HEADER, &["", "a b", "a\tb", "é"], &["a\r\nb", "a\nb", "\0", "\u{7f}"]);
    }

    #[test]
    fn every_pattern_of_a_built_in_backend_is_described_in_words() {
        for backend in schemas() {
            for param in backend.actions.iter().flat_map(|action| &action.params) {
                for pattern in param.pattern.iter().chain(&param.name_pattern) {
                    assert!(form(pattern).is_some(), "{} {}: {pattern}", backend.name, param.name);
                }
            }
        }
    }

    #[test]
    fn units_are_named_by_systemds_rules() {
        check(
            UNIT,
            &[
                "nginx",
                "nginx.service",
                "getty@tty1",
                "getty@.service",
                r"dev-disk-by\x2duuid.swap",
                "a:b_c.d",
                r"systemd-fsck@dev-disk-by\x2dlabel-x.service",
            ],
            &[
                "", "-.mount", "--user", "a b", "a/b", "/dev/sda", "ng*", "ng?nx", "[a]", "a@b@c", r"a\b",
                r"a\x2D", "a\n", "é",
            ],
        );
    }
}
