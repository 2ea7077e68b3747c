//! Rules of the settings: which source wins, and how bad values are refused.

use std::io::Write;

use downbeat_agent::JOB_VARIABLES;
use tempfile::NamedTempFile;

use super::load::{Given, Sources, load, load_backends};
use super::table::Fallback;
use super::{AGENT, AgentKeys, SERVER, ServerKeys};
use crate::exit::Code;

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn sources(
    config: Option<&NamedTempFile>,
    environment: &[(&str, &str)],
    flags: &[(&'static str, &str, &'static str)],
) -> Sources {
    // Without its own file a test would read the one in its working directory.
    Sources {
        config: config.map(|file| file.path().to_owned()),
        environment: environment
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        flags: flags
            .iter()
            .map(|(key, value, flag)| (*key, Given::Text((*value).to_owned()), *flag))
            .collect(),
    }
}

fn server(sources: &Sources) -> Result<(ServerKeys, String), String> {
    let derived = |keys: &ServerKeys| {
        let value = keys.node_stale_after().to_string().into();
        vec![("node_stale_after", value)]
    };
    match load(SERVER, sources, ServerKeys::check, derived) {
        Ok(loaded) => Ok((loaded.keys, loaded.shown.toml())),
        Err(failure) => {
            assert_eq!(failure.code, Code::BadInput);
            Err(failure.message)
        }
    }
}

#[test]
fn later_sources_win_and_each_value_says_where_it_came_from() {
    let file = file(
        "[server]\nstore = \"sqlite:file.db\"\nlease_ttl = \"40s\"\nretention_days = 3\nname = \"one\"\n[agent]\nslots = 2\n",
    );
    let environment = [
        ("DOWNBEAT_STORE", "sqlite:env.db"),
        ("DOWNBEAT_RETENTION_DAYS", "4"),
        ("DOWNBEAT_SLOTS", "9"),
        ("HOME", "/"),
    ];
    let (keys, shown) =
        server(&sources(Some(&file), &environment, &[("store", "memory:", "--store")])).unwrap();
    assert_eq!(
        (keys.store.as_str(), keys.retention_days, keys.lease_ttl.to_string().as_str()),
        ("memory:", 4, "40s")
    );
    let shown = shown.replace(file.path().to_str().unwrap(), "downbeat.toml");
    insta::assert_snapshot!(shown);
    toml::from_str::<toml::Table>(&shown).expect("what is shown is TOML again");
}

#[test]
fn what_is_wrong_is_said_in_one_line_that_names_the_key() {
    let empty = file("");
    let mut errors = String::new();
    for text in [
        "[server]\nstroe = \"x\"",
        "[server]\nwhatever = 1",
        "[sever]\nstore = \"x\"",
        "store = \"x\"",
        "[agent]\nslot = 1",
        "[server]\nhttp = \"localhost\"",
        "[server]\nlease_ttl = \"30\"",
        "[server]\nlease_ttl = 30",
        "[server]\noutput_max = \"lots\"",
        "[server]\nretention_days = -1",
        "[server]\nmax_concurrent_runs = 0",
        "[server]\nallowed_hosts = \"http://jobs.example\"",
        "[server]\nallowed_hosts = [\"jobs.example:4680\"]",
        "[server]\nlog_format = \"xml\"",
        "[server]\nlease_ttl = \"5s\"",
        "[server]\nlease_ttl = \"19s\"",
        "[server]\nheartbeat_interval = \"1ms\"",
        "[server]\nnode_stale_after = \"1s\"",
        "[server]\noutput_max = 1",
        "[server]\nnode_offline_after = \"10s\"",
        "[server]\nreplica_of = \"10.0.0.1:4680\"",
        "[server]\nreplica_of = [\"http://a:1\", \"http://a/b\"]",
        "[server",
    ] {
        let file = file(text);
        let message = server(&sources(Some(&file), &[], &[])).unwrap_err();
        assert_eq!(message.lines().count(), 1, "{message}");
        errors.push_str(&format!(
            "{text:?}\n  {}\n",
            message.replace(file.path().to_str().unwrap(), "downbeat.toml")
        ));
    }
    for variable in [("DOWNBEAT_HTTP", "nowhere"), ("DOWNBEAT_STROE", "x"), ("DOWNBEAT_BOGUS", "1")] {
        let message = server(&sources(Some(&empty), &[variable], &[])).unwrap_err();
        errors.push_str(&format!("{}={}\n  {message}\n", variable.0, variable.1));
    }
    let message = server(&sources(Some(&empty), &[], &[("grpc", "1:2:3", "--grpc")])).unwrap_err();
    errors.push_str(&format!("--grpc 1:2:3\n  {message}\n"));
    insta::assert_snapshot!(errors);
}

#[test]
fn variables_that_are_not_settings_are_ignored() {
    let empty = file("");
    let environment = [
        ("DOWNBEAT_SERVER", "http://x"),
        ("DOWNBEAT_TEST_POSTGRES", "x"),
        ("DOWNBEAT_SERVICE_HOST", "10.0.0.1"),
        ("DOWNBEAT_PORT_4680_TCP_ADDR", "10.0.0.1"),
        ("DOWNBEAT_GROUPS", "web"),
    ];
    assert!(server(&sources(Some(&empty), &environment, &[])).is_ok());
}

/// `exec run "downbeat agent"`: variables that an agent sets for its jobs do not prevent a job from running downbeat.
#[test]
fn variables_that_jobs_get_are_let_be() {
    let empty = file("");
    for variable in JOB_VARIABLES {
        assert!(variable.starts_with("DOWNBEAT_"), "{variable}");
        let environment = [(variable, "x")];
        assert!(server(&sources(Some(&empty), &environment, &[])).is_ok(), "{variable}");
    }
}

#[test]
fn jobs_get_the_variables_that_the_settings_name() {
    let file = file("[agent]\npass_env = [\"AWS_*\", \"HTTPS_PROXY\"]\n");
    let read = |sources: &Sources| load(AGENT, sources, AgentKeys::check, |_| Vec::new());
    let loaded = read(&sources(Some(&file), &[], &[])).unwrap();
    assert_eq!(loaded.keys.pass_env.0, ["AWS_*", "HTTPS_PROXY"]);
    let shown = loaded.shown.toml();
    assert!(shown.contains("pass_env = [\"AWS_*\", \"HTTPS_PROXY\"]"), "{shown}");
    let loaded = read(&sources(Some(&file), &[("DOWNBEAT_PASS_ENV", "A,B_*")], &[])).unwrap();
    assert_eq!(loaded.keys.pass_env.0, ["A", "B_*"]);
    let refused =
        read(&sources(Some(&file), &[], &[("pass_env", "NOTIFY_SOCKET", "--pass-env")])).unwrap_err();
    assert_eq!(
        refused.message,
        "bad value of `pass_env` (--pass-env): `NOTIFY_SOCKET` belongs to the agent and is never passed on; remove it"
    );
}

#[test]
fn an_agent_does_not_dial_in_clear_text_where_tls_was_asked_for() {
    let empty = file("");
    let flags = [("server", "10.0.0.1,https://downbeat.internal:4681", "--server")];
    let refused =
        load(AGENT, &sources(Some(&empty), &[], &flags), AgentKeys::check, |_| Vec::new()).unwrap_err();
    assert_eq!(refused.code, Code::BadInput);
    assert_eq!(
        refused.message,
        "bad value of `server` (--server): `https://downbeat.internal:4681` requires TLS, which agents do not support yet; \
         write HOST:PORT to connect in clear text"
    );
}

#[test]
fn a_replica_may_name_several_servers_of_its_primary() {
    let empty = file("");
    let environment = [("DOWNBEAT_REPLICA_OF", "http://a:1,http://b:2/")];
    let (keys, _) = server(&sources(Some(&empty), &environment, &[])).unwrap();
    assert_eq!(keys.replica_of.0, ["http://a:1", "http://b:2/"]);
    let flag = [("replica_of", "http://c:3", "--replica-of")];
    let (keys, shown) = server(&sources(Some(&empty), &environment, &flag)).unwrap();
    assert_eq!(keys.replica_of.0, ["http://c:3"]);
    assert!(shown.contains("http://c:3") && shown.contains("--replica-of"), "{shown}");
}

#[test]
fn a_named_file_must_exist() {
    let missing = Sources { config: Some("no-such.toml".into()), ..Sources::default() };
    assert_eq!(server(&missing).unwrap_err(), "the config file no-such.toml does not exist");
}

#[test]
fn agents_read_lists_and_labels_from_files_and_from_text() {
    let file = file(
        "[agent]\nserver = [\"a:1\", \"b:2\"]\ngroups = [\"web\"]\nlabels = {disk = \"ssd\", rack = 7}\nslots = 3\n[server]\nstore = \"memory:\"\n",
    );
    let read =
        |sources: &Sources| load(AGENT, sources, AgentKeys::check, |_| Vec::new()).map(|loaded| loaded.keys);
    let keys = read(&sources(Some(&file), &[], &[])).unwrap();
    assert_eq!(
        (keys.server.0, keys.groups.0, keys.slots),
        (vec!["a:1".to_owned(), "b:2".to_owned()], vec!["web".to_owned()], Some(3))
    );
    assert_eq!(
        keys.labels.texts().into_iter().collect::<Vec<_>>(),
        [("disk".into(), "ssd".into()), ("rack".into(), "7".into())]
    );

    let environment = [("DOWNBEAT_AGENT_SERVER", "c:3,d:4"), ("DOWNBEAT_SLOTS", "5")];
    let keys = read(&sources(Some(&file), &environment, &[("labels", "zone=a", "--label")])).unwrap();
    assert_eq!((keys.server.0, keys.slots), (vec!["c:3".to_owned(), "d:4".to_owned()], Some(5)));
    assert_eq!(keys.labels.texts().into_iter().collect::<Vec<_>>(), [("zone".into(), "a".into())]);

    let refused = read(&sources(Some(&file), &[("DOWNBEAT_SLOTS", "0")], &[])).unwrap_err();
    assert_eq!(refused.message, "bad value of `slots` (DOWNBEAT_SLOTS): must be at least 1");
}

#[test]
fn a_label_of_a_flag_may_hold_a_comma() {
    let empty = file("");
    let each = |texts: &[&str]| Given::Each(texts.iter().map(|text| (*text).to_owned()).collect());
    let mut sources = sources(Some(&empty), &[], &[("groups", "a,b", "--groups")]);
    sources.flags.push(("labels", each(&["note=a,b", "zone=c"]), "--label"));
    sources.flags.push(("capabilities", each(&["gpus=2"]), "--capability"));
    let keys = load(AGENT, &sources, AgentKeys::check, |_| Vec::new()).unwrap().keys;
    assert_eq!(
        keys.labels.texts().into_iter().collect::<Vec<_>>(),
        [("note".into(), "a,b".into()), ("zone".into(), "c".into())]
    );
    assert_eq!(keys.capabilities.values()["gpus"], 2);
    assert_eq!(keys.groups.0, ["a", "b"]);

    sources.flags.push(("labels", each(&["=x"]), "--label"));
    let refused = load(AGENT, &sources, AgentKeys::check, |_| Vec::new()).unwrap_err();
    assert_eq!(refused.message, "bad value of `labels` (--label): `=x` has no name; write name=value");
}

const BACKUP: &str = r#"
[backends.backup]
help = "Backups of this host"
[backends.backup.actions.now]
argv = ["/usr/local/bin/backup", "--level={level}", "--", "{paths}"]
env = { BACKUP_MODE = "{mode}" }
working_dir = "/var/backups"
[backends.backup.actions.now.params.level]
type = "integer"
required = true
min = 0
max = 9
[backends.backup.actions.now.params.paths]
type = "texts"
pattern = "/[a-z/]+"
[backends.backup.actions.now.params.mode]
type = "text"
choices = ["full", "quick"]
"#;

#[test]
fn backends_of_the_users_own_are_read_and_shown() {
    let file = file(&format!("[agent]\nslots = 3\n{BACKUP}"));
    let sources = sources(Some(&file), &[], &[]);
    let (declared, tree) = load_backends(&sources).unwrap();
    assert_eq!(declared.iter().map(|backend| backend.name()).collect::<Vec<_>>(), ["backup"]);
    let mut loaded = load(AGENT, &sources, AgentKeys::check, |_| Vec::new()).unwrap();
    loaded.shown.tree = tree;
    let shown = loaded.shown.toml();
    let again: toml::Table = toml::from_str(&shown).expect("what is shown is TOML again");
    assert_eq!(again["backends"], toml::from_str::<toml::Table>(BACKUP).unwrap()["backends"], "{shown}");
    assert!(shown.contains(&format!("# {}\n[backends", file.path().display())), "{shown}");
    // A server that reads the same file ignores them.
    assert!(server(&sources).is_ok());
}

#[test]
fn a_declaration_that_cannot_be_meant_is_one_line_that_names_its_key() {
    let mut errors = String::new();
    for (from, to) in [
        ("--level={level}", "--level={lvl}"),
        (", \"{paths}\"]", "]"),
        ("/usr/local/bin/backup", "backup"),
        ("/usr/local/bin/backup", "{mode}"),
        ("\"/usr/local/bin/backup\"", "\"/bin/sh\", \"-c\", \"x\""),
        ("/[a-z/]+", "/[a-z/+"),
        ("[backends.backup]", "[backends.exec]"),
        ("--level={level}", "--level={{level}}"),
        ("type = \"integer\"", "type = \"number\""),
        ("required = true", "requird = true"),
        ("min = 0", "min = \"none\""),
        ("min = 0", "min = 10"),
        ("/var/backups", "backups"),
        ("BACKUP_MODE", "1MODE"),
    ] {
        let text = BACKUP.replacen(from, to, 1);
        // The name is in the header of every section.
        let text =
            if to == "[backends.exec]" { BACKUP.replace("backends.backup", "backends.exec") } else { text };
        assert_ne!(text, BACKUP, "{from}");
        let file = file(&text);
        let message = load_backends(&sources(Some(&file), &[], &[])).unwrap_err().message;
        assert_eq!(message.lines().count(), 1, "{message}");
        errors.push_str(&format!(
            "{from} -> {to}\n  {}\n",
            message.replace(file.path().to_str().unwrap(), "downbeat.toml")
        ));
    }
    insta::assert_snapshot!(errors);
}

#[test]
fn what_a_node_says_of_itself_is_checked_before_it_starts() {
    for (key, value, flag, expected) in [
        (
            "hostname",
            "my host",
            "--hostname",
            "bad value of `hostname` (--hostname): `my host` is not a valid name; use letters, digits, `.`, `-` and `_`, \
             and start with a letter or a digit; name this node with --hostname NAME",
        ),
        ("hostname", "", "--hostname", "bad value of `hostname` (--hostname): `` is not a valid name"),
        ("groups", "web,a b", "--groups", "bad value of `groups` (--groups): `a b` is not a valid name"),
        (
            "labels",
            "note=a\u{1b}[2J",
            "--label",
            "the value of `note` contains a control character: `a\\u{1b}[2J`",
        ),
        ("slots", "4294967295", "--slots", "bad value of `slots` (--slots): 4294967295 is more than 1024"),
    ] {
        let empty = file("");
        let sources = sources(Some(&empty), &[], &[(key, value, flag)]);
        let refused = load(AGENT, &sources, AgentKeys::check, |_| Vec::new()).unwrap_err();
        assert_eq!(refused.code, Code::BadInput);
        assert!(refused.message.contains(expected), "{}", refused.message);
    }
}

const BEGIN: &str = "<!-- written from the tables of settings: UPDATE_GOLDEN=1 -->\n";
const END: &str = "<!-- end -->";

/// Renders the tables of the page of settings.
fn page() -> String {
    let mut page = String::new();
    for section in [SERVER, AGENT] {
        page.push_str(&format!(
            "\n## `[{}]`\n\n| key | variable | flag | default | meaning |\n",
            section.name
        ));
        page.push_str("|---|---|---|---|---|\n");
        for setting in section.settings {
            let flag = match (section.name, setting.key) {
                (_, "log_level" | "log_format") | ("agent", "server" | "cluster") => {
                    format!("`--{}`", setting.key.replace('_', "-"))
                }
                _ if setting.flag.is_empty() => String::new(),
                _ => format!("`{}`", setting.flag),
            };
            let default = match setting.default {
                Fallback::Is("") | Fallback::Unset => String::new(),
                Fallback::Is(default) => format!("`{default}`"),
                Fallback::Follows(from) => from.to_owned(),
            };
            let variable = match setting.key {
                super::agent::BACKEND => String::new(),
                key => format!("`{}`", section.variable(key)),
            };
            page.push_str(&format!(
                "| `{}` | {variable} | {flag} | {default} | {} |\n",
                setting.key, setting.help
            ));
        }
    }
    page.push('\n');
    page
}

#[test]
fn the_page_of_settings_lists_them_as_they_are() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the page marks where the tables begin");
    let (found, after) = rest.split_once(END).expect("the page marks where the tables end");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, format!("{before}{BEGIN}{}{END}{after}", page())).unwrap();
        return;
    }
    assert_eq!(found, page(), "write it again with UPDATE_GOLDEN=1");
}

/// Programs that embed a server use its own defaults, users those of the table.
#[test]
fn the_defaults_of_the_table_are_those_of_the_server() {
    let empty = file("");
    let (keys, _) = server(&sources(Some(&empty), &[], &[])).unwrap();
    let of_table = downbeat_server::Settings::from(&keys);
    assert_eq!(format!("{of_table:?}"), format!("{:?}", downbeat_server::Settings::default()));
}

#[test]
fn a_backend_has_settings_of_its_own() {
    let read = |sources: &Sources| load(AGENT, sources, AgentKeys::check, |_| Vec::new());
    let own = file("[agent.backend.docker]\nsocket = \"unix:///run/x.sock\"\n");
    let loaded = read(&sources(Some(&own), &[], &[])).unwrap();
    assert!(loaded.keys.backend_settings().is_ok());
    assert!(loaded.shown.toml().contains("backend = "), "{}", loaded.shown.toml());
    for (text, expected) in [
        (
            "[agent.backend.docker]\nsockt = \"x\"",
            "`backend.docker.sockt`: unknown key; did you mean `socket`?",
        ),
        ("[agent.backend.dokcer]", "`backend.dokcer`: unknown key; did you mean `docker`?"),
        ("[agent]\ndocker_socket = \"ssh://x\"", "bad value of `docker_socket`"),
    ] {
        let file = file(text);
        let refused = read(&sources(Some(&file), &[], &[])).unwrap_err();
        assert!(refused.message.contains(expected), "{}", refused.message);
    }
}

#[test]
fn limits_of_what_is_kept_are_read_and_checked() {
    let empty = file("");
    let read = |flags: &[(&'static str, &str, &'static str)]| {
        load(SERVER, &sources(Some(&empty), &[], flags), ServerKeys::check, |_| Vec::new())
    };
    let keys = read(&[]).unwrap().keys;
    assert_eq!((keys.keep_runs, keys.keep_events, keys.keep_output), (None, None, None));
    let keys = read(&[
        ("keep_runs", "5000", "--keep-runs"),
        ("keep_events", "100000", "--keep-events"),
        ("keep_output", "2GiB", "--keep-output"),
    ]);
    let keys = keys.unwrap().keys;
    assert_eq!((keys.keep_runs, keys.keep_events), (Some(5_000), Some(100_000)));
    assert_eq!(keys.keep_output.map(|size| size.0), Some(2 << 30));
    for (key, value, flag, expected) in [
        ("keep_runs", "0", "--keep-runs", "bad value of `keep_runs` (--keep-runs): must be at least 1"),
        (
            "keep_events",
            "99999",
            "--keep-events",
            "bad value of `keep_events` (--keep-events): 99999 is less than 100000",
        ),
        (
            "keep_output",
            "0",
            "--keep-output",
            "bad value of `keep_output` (--keep-output): must be at least 1",
        ),
        ("keep_output", "much", "--keep-output", "`much` is not a size"),
        (
            "clean_every",
            "0s",
            "--clean-every",
            "bad value of `clean_every` (--clean-every): must be longer than 0",
        ),
    ] {
        let refused = read(&[(key, value, flag)]).unwrap_err();
        assert_eq!(refused.code, Code::BadInput);
        assert!(refused.message.contains(expected), "{}", refused.message);
    }
}
