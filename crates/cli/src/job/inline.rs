//! Reads one task from the command line: `BACKEND ACTION [--KEY VALUE]…`.
//!
//! Values get the types that the action declares: in the catalogue, or, for a backend that only nodes have, on a node
//! that offers it.

use clap::{ArgAction, Args, Command, FromArgMatches};
use downbeat_api::{NodeSummary, request};
use downbeat_client::{Client, Start};
use downbeat_core::backend::{ActionSchema, Catalogue, ParamKind, ParamSchema, coerce};
use downbeat_core::limits;
use downbeat_core::nearest::nearest;
use serde_json::{Value, json};

use super::run::RunOptions;
use crate::args::Global;
use crate::exit::{Failure, Result};

/// The definition of one task, and the options, including those after ACTION.
#[derive(Debug)]
pub(super) struct Inline {
    pub(super) options: RunOptions,
    pub(super) global: Global,
    pub(super) definition: Value,
    /// Set for a backend that only nodes have: a node declares its params.
    node_backend: Option<NodeBackend>,
}

#[derive(Debug)]
struct NodeBackend {
    backend: String,
    action: String,
    given: Given,
}

impl Inline {
    /// Returns the definition. Params of a backend that only nodes have get the types that a node declares.
    pub(super) async fn with_node_schema(self, client: &Client) -> Result<Value> {
        let Self { mut definition, node_backend, .. } = self;
        if let Some(NodeBackend { backend, action, given }) = node_backend
            && let Some(schema) = node_schema(client, &backend, &action).await?
        {
            definition["tasks"][0]["params"] = json!(coerce(&schema, given));
        }
        Ok(definition)
    }
}

/// Returns the first node that offers a backend.
async fn offering(client: &Client, backend: &str) -> Result<Option<NodeSummary>> {
    let nodes = request::cluster_nodes(client.cluster().unwrap_or("default"));
    let mut start = Start::default();
    loop {
        let page = client.page(nodes.clone(), limits::PAGE_MOST, &start).await?;
        let next = start.next(&page);
        let found = page.data.into_iter().find(|node| node.backends.iter().any(|name| name == backend));
        match next {
            Some(next) if found.is_none() => start = next,
            _ => return Ok(found),
        }
    }
}

/// Returns the schema of an action from a node that offers it, if one does.
async fn node_schema(client: &Client, backend: &str, action: &str) -> Result<Option<ActionSchema>> {
    let Some(node) = offering(client, backend).await? else { return Ok(None) };
    let node = client.ask(request::node(node.id)).await?;
    let offered = node.backends.into_iter().find(|offered| offered.name == backend);
    let action = offered.and_then(|offered| offered.actions.into_iter().find(|known| known.name == action));
    Ok(action.map(|action| ActionSchema {
        params: action.params.into_iter().map(|param| ParamSchema::new(param.name, param.kind)).collect(),
        name: action.name,
        idempotent: action.idempotent,
    }))
}

pub(super) fn read(mut options: RunOptions, mut global: Global, words: Vec<String>) -> Result<Inline> {
    let mut words = words.into_iter();
    let backend = backend(words.next())?;
    let Some(action) = words.next().filter(|word| !word.starts_with('-')) else {
        return Err(no_action(&backend));
    };
    let catalogue = Catalogue::builtin();
    let schema = catalogue.action(&backend, &action).ok();
    let (given, late) = split(schema, words)?;
    if !late.is_empty() {
        let wrong = |error: clap::Error| Failure::bad_input(first_line(&error.to_string()));
        let matches = late_command().try_get_matches_from(late).map_err(wrong)?;
        options.update_from_arg_matches(&matches).map_err(wrong)?;
        let output = global.output;
        global.update_from_arg_matches(&matches).map_err(wrong)?;
        // The default of `--output` must not replace a format that was set before.
        if matches.value_source("output") != Some(clap::parser::ValueSource::CommandLine) {
            global.output = output;
        }
        if options.following.wait && options.following.watch {
            return Err(Failure::bad_input("--wait and --watch cannot be used together"));
        }
    }
    let undeclared = ActionSchema { name: action.clone(), idempotent: false, params: Vec::new() };
    let params = coerce(schema.unwrap_or(&undeclared), given.clone());
    let definition = definition(&backend, &action, &json!(params), &options, &global);
    let node_backend = schema.is_none().then_some(NodeBackend { backend, action, given });
    Ok(Inline { options, global, definition, node_backend })
}

fn definition(backend: &str, action: &str, params: &Value, options: &RunOptions, global: &Global) -> Value {
    let mut task = json!({"backend": backend, "action": action, "params": params});
    if let Some(timeout) = options.timeout {
        task["timeout"] = json!(timeout);
    }
    if let Some(retries) = options.max_retries {
        task["max_retries"] = json!(retries);
    }
    let mut definition = json!({"tasks": [task]});
    match &options.target {
        Some(target) => definition["target"] = json!(target),
        None => definition["placement"] = json!({}),
    }
    if let Some(cluster) = &global.cluster {
        definition["cluster"] = json!(cluster);
    }
    definition
}

/// Explains a word without an action: a backend, a file, or a job of a later version.
fn no_action(word: &str) -> Failure {
    let is_file = [".yaml", ".yml", ".json"].iter().any(|end| word.ends_with(end));
    if is_file || std::path::Path::new(word).is_file() {
        return Failure::bad_input(format!("`{word}` is a file; write `downbeat job run -f {word}`"));
    }
    let catalogue = Catalogue::builtin();
    match catalogue.backend(word) {
        Ok(backend) => {
            let actions: Vec<&str> = backend.actions.iter().map(|action| action.name.as_str()).collect();
            Failure::bad_input(format!("ACTION is missing: backend `{word}` has {}", actions.join(", ")))
        }
        Err(_) => Failure::bad_input(format!(
            "ACTION is missing after BACKEND `{word}`; if `{word}` is a job: stored jobs are not available in this \
             version, use `downbeat job run -f FILE`"
        )),
    }
}

fn backend(word: Option<String>) -> Result<String, Failure> {
    match word {
        None => Err(Failure::bad_input(
            "BACKEND is missing: downbeat job run [OPTIONS] BACKEND ACTION [--KEY VALUE]...",
        )),
        Some(word) if word.starts_with('-') => {
            let command = late_command();
            let known = command.get_arguments().filter_map(|arg| arg.get_long()).chain(["file"]);
            let bare = word.trim_start_matches('-').split('=').next().unwrap_or_default().to_owned();
            let hint =
                nearest(&bare, known).map(|near| format!("; did you mean `--{near}`?")).unwrap_or_default();
            Err(Failure::bad_input(format!("unexpected option `{word}` before BACKEND{hint}")))
        }
        Some(word) => Ok(word),
    }
}

/// Returns the options that are also accepted after ACTION.
fn late_command() -> Command {
    let command =
        Global::augment_args(RunOptions::augment_args(Command::new("job run").no_binary_name(true)));
    // `--file` is not accepted here, but clap refuses a conflict with an unknown argument.
    command.arg(clap::Arg::new("file").long("file").hide(true)).disable_help_flag(true)
}

type Given = Vec<(String, String)>;

/// Separates the params from the options of the run.
fn split(schema: Option<&ActionSchema>, words: impl Iterator<Item = String>) -> Result<(Given, Vec<String>)> {
    let options = late_command();
    let mut words = words.peekable();
    let mut given = Vec::new();
    let mut late = Vec::new();
    while let Some(word) = words.next() {
        let (bare, attached) = match word.split_once('=') {
            Some((bare, value)) => (bare.to_owned(), Some(value.to_owned())),
            None => (word.clone(), None),
        };
        let kind = bare.strip_prefix("--").and_then(|long| declared(schema, long));
        let option = options.get_arguments().find(|arg| {
            arg.get_long().is_some_and(|long| bare.strip_prefix("--") == Some(long) && long != "file")
                || arg.get_short().is_some_and(|short| bare == format!("-{short}"))
        });
        if let (None, Some(option)) = (kind, option) {
            late.push(word);
            if matches!(option.get_action(), ArgAction::Set | ArgAction::Append) && attached.is_none() {
                late.extend(words.next());
            }
            continue;
        }
        let Some(key) = bare.strip_prefix("--").filter(|key| !key.is_empty()) else {
            return Err(Failure::bad_input(format!(
                "unexpected `{word}`: write params as --KEY VALUE, and quote values with spaces"
            )));
        };
        let value = match attached {
            Some(value) => value,
            None => match words.next_if(|next| !next.starts_with("--")) {
                Some(value) => value,
                None if matches!(kind, Some(ParamKind::Boolean)) => "true".to_owned(),
                None => {
                    return Err(Failure::bad_input(format!(
                        "`--{key}` has no value; write --{key}=VALUE if the value starts with dashes"
                    )));
                }
            },
        };
        given.push((key.replace('-', "_"), value));
    }
    Ok((given, late))
}

fn declared(schema: Option<&ActionSchema>, long: &str) -> Option<ParamKind> {
    let name = long.replace('-', "_");
    schema?.params.iter().find(|param| param.name == name).map(|param| param.kind)
}

/// Returns the first line of clap's error, without `error:` and usage.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Cli;
    use crate::out::Format;

    fn read_words(words: &[&str]) -> Result<Inline> {
        let global = Cli::try_parse_from(["downbeat", "status"]).unwrap().global;
        let none: [&str; 0] = [];
        let matches = late_command().get_matches_from(none);
        let options = RunOptions::from_arg_matches(&matches).unwrap();
        read(options, global, words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn params_take_the_types_that_the_action_declares() {
        let inline = read_words(&[
            "exec",
            "run",
            "--command",
            "uptime -p",
            "--env",
            "A=1",
            "--env=B=2",
            "--working-dir",
            "/",
        ])
        .unwrap();
        assert_eq!(
            inline.definition,
            json!({"placement": {}, "tasks": [{"backend": "exec", "action": "run", "params":
                {"command": "uptime -p", "env": {"A": "1", "B": "2"}, "working_dir": "/"}}]})
        );
        let inline = read_words(&["test", "fail", "--exit-code", "7"]).unwrap();
        assert_eq!(inline.definition["tasks"][0]["params"], json!({"exit_code": 7}));
    }

    #[test]
    fn options_of_the_run_are_understood_after_the_action() {
        let inline = read_words(&[
            "test",
            "noop",
            "--target",
            "all",
            "--wait",
            "-o",
            "json",
            "--timeout=5s",
            "--max-retries",
            "2",
        ])
        .unwrap();
        assert!(inline.options.following.wait);
        assert_eq!(inline.global.output, Format::Json);
        assert_eq!(
            inline.definition,
            json!({"target": "all", "tasks": [{"backend": "test", "action": "noop", "params": {}, "timeout": "5s", "max_retries": 2}]})
        );
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (words, expected) in [
            (vec![], "BACKEND is missing"),
            (vec!["exec"], "ACTION is missing: backend `exec` has run, shell"),
            (vec!["job.yaml", "--watch"], "`job.yaml` is a file; write `downbeat job run -f job.yaml`"),
            (vec!["etl"], "stored jobs are not available in this version, use `downbeat job run -f FILE`"),
            (vec!["etl.yaml"], "write `downbeat job run -f etl.yaml`"),
            (vec!["--wiat", "test", "noop"], "did you mean `--wait`?"),
            (vec!["exec", "run", "uptime"], "unexpected `uptime`"),
            (vec!["exec", "run", "--command"], "`--command` has no value"),
            (vec!["exec", "run", "--command", "--stdin", "x"], "`--command` has no value"),
            (vec!["test", "noop", "--timeout", "soon"], "soon"),
            (vec!["test", "noop", "--wait", "--watch"], "cannot be used"),
        ] {
            let failure = read_words(&words).unwrap_err();
            assert!(failure.message.contains(expected), "{words:?}: {}", failure.message);
        }
    }
}
