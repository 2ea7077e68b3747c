//! Reads one task from the command line: `BACKEND ACTION [--KEY VALUE]…`.
//!
//! Values get the types that the action declares: in the catalogue, or, for a backend that only nodes have, on a node
//! that offers it. Options of the command are also accepted after ACTION, unless the action has a param of that name.

use clap::parser::ValueSource;
use clap::{ArgAction, Args, Command, FromArgMatches};
use downbeat_api::{NodeSummary, request};
use downbeat_client::{Client, Start};
use downbeat_core::backend::{ActionSchema, Catalogue, ParamKind, ParamSchema, Params, coerce};
use downbeat_core::limits;
use downbeat_core::nearest::nearest;

use crate::args::Global;
use crate::exit::{Failure, Result};

/// Backend, action and params.
#[derive(Clone, Debug)]
pub(crate) struct InlineAction {
    pub(crate) backend: String,
    pub(crate) action: String,
    pub(crate) params: Params,
    /// Set for a backend that only nodes have: a node declares its params.
    untyped: Option<Given>,
}

impl InlineAction {
    /// Gives params of a backend that only nodes have the types that a node declares.
    pub(crate) async fn with_node_schema(mut self, client: &Client) -> Result<Self> {
        if let Some(given) = self.untyped.take()
            && let Some(schema) = node_schema(client, &self.backend, &self.action).await?
        {
            self.params = coerce(&schema, given);
        }
        Ok(self)
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

/// Reads the words after the options of a command. `command` is such as `downbeat job run`, and `options` has the
/// options that are also accepted after ACTION; the words of those are returned.
pub(crate) fn read(
    words: Vec<String>,
    command: &str,
    options: &Command,
) -> Result<(InlineAction, Vec<String>)> {
    let mut words = words.into_iter();
    let backend = backend(words.next(), command, options)?;
    let Some(action) = words.next().filter(|word| !word.starts_with('-')) else {
        return Err(no_action(&backend));
    };
    let catalogue = Catalogue::builtin();
    let schema = catalogue.action(&backend, &action).ok();
    let (given, late) = split(schema, words, options)?;
    let undeclared = ActionSchema { name: action.clone(), idempotent: false, params: Vec::new() };
    let params = coerce(schema.unwrap_or(&undeclared), given.clone());
    let untyped = schema.is_none().then_some(given);
    Ok((InlineAction { backend, action, params, untyped }, late))
}

/// Sets the options that were written after ACTION.
pub(crate) fn update<O: Args>(
    late: Vec<String>,
    accepted: Command,
    options: &mut O,
    global: &mut Global,
) -> Result {
    if late.is_empty() {
        return Ok(());
    }
    let wrong = |error: clap::Error| Failure::bad_input(first_line(&error.to_string()));
    let mut matches = accepted.try_get_matches_from(late).map_err(wrong)?;
    // Defaults must not replace options that were set before.
    let ids: Vec<String> = matches.ids().map(|id| id.as_str().to_owned()).collect();
    for id in ids {
        if matches.value_source(&id) == Some(ValueSource::DefaultValue) {
            let _ = matches.try_clear_id(&id);
        }
    }
    options.update_from_arg_matches(&matches).map_err(wrong)?;
    global.update_from_arg_matches(&matches).map_err(wrong)?;
    Ok(())
}

/// Returns the options of a command that are also accepted after ACTION.
pub(crate) fn late_command<O: Args>(name: &'static str) -> Command {
    Global::augment_args(O::augment_args(Command::new(name).no_binary_name(true))).disable_help_flag(true)
}

/// Explains a backend without an action.
fn no_action(word: &str) -> Failure {
    match Catalogue::builtin().backend(word) {
        Ok(backend) => {
            let actions: Vec<&str> = backend.actions.iter().map(|action| action.name.as_str()).collect();
            Failure::bad_input(format!("ACTION is missing: backend `{word}` has {}", actions.join(", ")))
        }
        Err(_) => Failure::bad_input(format!("ACTION is missing after BACKEND `{word}`")),
    }
}

fn backend(word: Option<String>, command: &str, options: &Command) -> Result<String> {
    match word {
        None => Err(Failure::bad_input(format!(
            "BACKEND is missing: {command} [OPTIONS] BACKEND ACTION [--KEY VALUE]..."
        ))),
        Some(word) if word.starts_with('-') => {
            let known = options.get_arguments().filter_map(|arg| arg.get_long());
            let bare = word.trim_start_matches('-').split('=').next().unwrap_or_default().to_owned();
            let hint =
                nearest(&bare, known).map(|near| format!("; did you mean `--{near}`?")).unwrap_or_default();
            Err(Failure::bad_input(format!("unexpected option `{word}` before BACKEND{hint}")))
        }
        Some(word) => Ok(word),
    }
}

type Given = Vec<(String, String)>;

/// Separates the params from the options of the command.
fn split(
    schema: Option<&ActionSchema>,
    words: impl Iterator<Item = String>,
    options: &Command,
) -> Result<(Given, Vec<String>)> {
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
            arg.get_long().is_some_and(|long| bare.strip_prefix("--") == Some(long) && !arg.is_hide_set())
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
