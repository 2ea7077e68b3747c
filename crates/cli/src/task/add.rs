//! `task add`.

use clap::{Args, Command};
use downbeat_api::request;
use downbeat_client::Body;
use downbeat_core::Span;
use serde_json::{Value, json};

use super::which::cluster;
use crate::args::Global;
use crate::connect::connect;
use crate::exit::{Failure, Result};
use crate::inline::{self, InlineAction};
use crate::out::Out;

#[derive(Debug, Args)]
#[command(
    override_usage = "downbeat task add [OPTIONS] NAME --command COMMAND\n       \
                      downbeat task add [OPTIONS] NAME BACKEND ACTION [--KEY VALUE]...",
    after_help = "Examples:\n  \
        downbeat task add install --blocking --command 'apt-get install -y nginx' --timeout 10m\n  \
        downbeat task add nginx --selector group:web apt install --packages nginx\n  \
        downbeat task add users --position 1 --command ./users.sh --working-dir /opt/setup"
)]
pub(crate) struct AddArgs {
    /// Name, unique among the standing tasks of the cluster
    name: String,

    #[command(flatten)]
    options: AddOptions,

    /// Backend, action and the action's params; a repeated param is a list
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "BACKEND ACTION [--KEY VALUE]")]
    action: Vec<String>,
}

/// The options of a task. Accepted before BACKEND, and after ACTION unless the action has a param of that name.
#[derive(Clone, Debug, Args)]
pub(crate) struct AddOptions {
    #[command(flatten)]
    work: WorkOptions,
    /// If it fails on a node, the node does none of the tasks after it
    #[arg(long)]
    blocking: bool,
    /// Its place in the list, from 1; by default it is the last
    #[arg(long, value_name = "N")]
    position: Option<u32>,
}

/// The options about what a task does, and where.
#[derive(Clone, Debug, Args)]
pub(crate) struct WorkOptions {
    /// A command for the shell on the node: the action `exec shell`; needs an agent with --allow exec
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
    /// How long it may take on a node, from 10s to 24h [default: 30m]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<Span>,
    /// The directory of the command, absolute
    #[arg(long, value_name = "DIR")]
    working_dir: Option<String>,
    /// Only for nodes that this selector matches, such as `group:web and not label:zone=b`; `all` means every node
    #[arg(long, value_name = "SELECTOR")]
    selector: Option<String>,
}

impl WorkOptions {
    /// Sets the fields of a task that the options or the words after them name.
    pub(super) fn set(&self, task: &mut Value, action: Option<InlineAction>) -> Result {
        match (action, &self.command) {
            (Some(_), Some(_)) => {
                let message =
                    "--command and BACKEND ACTION cannot be used together; --command is `exec shell`";
                return Err(Failure::bad_input(message));
            }
            (Some(mut action), None) => {
                if let Some(directory) = &self.working_dir {
                    action.params.insert("working_dir".to_owned(), json!(directory));
                }
                task["backend"] = json!(action.backend);
                task["action"] = json!(action.action);
                task["params"] = json!(action.params);
            }
            (None, command) => {
                set(task, "command", command.as_ref());
                set(task, "working_dir", self.working_dir.as_ref());
            }
        }
        set(task, "timeout", self.timeout);
        // A selector of every node is left out.
        let selector = self.selector.as_deref().map(str::trim);
        set(task, "selector", selector.map(|selector| (!matches!(selector, "" | "all")).then_some(selector)));
        Ok(())
    }
}

/// Sets a field, if there is a value.
pub(super) fn set(task: &mut Value, field: &str, value: Option<impl serde::Serialize>) {
    if let Some(value) = value {
        task[field] = json!(value);
    }
}

pub(super) async fn run(args: AddArgs, global: &Global, out: Out) -> Result {
    let mut global = global.clone().or_environment();
    let mut options = args.options;
    let action = read("add", &mut options, &mut global, args.action)?;
    // Options after ACTION may name another server or format.
    let (client, out) = (connect(&global)?, out.with_format(global.output));
    let action = match action {
        Some(action) => Some(action.with_node_schema(&client).await?),
        None => None,
    };
    let task = new_task(&args.name, &options, action)?;
    let request = request::add_task(cluster(&client)).with_any("position", options.position);
    let task = client.send(request, Body::Json(task.to_string()), None).await?;
    out.result(&task, || {
        let whose =
            if task.selector.is_some() { "every node that its selector matches" } else { "every node" };
        let cluster = cluster(&client);
        format!("task {} is number {} of cluster {cluster}; {whose} does it", task.name, task.order)
    })
}

fn new_task(name: &str, options: &AddOptions, action: Option<InlineAction>) -> Result<Value> {
    if action.is_none() && options.work.command.is_none() {
        return Err(Failure::bad_input(
            "nothing to do: write --command COMMAND, or BACKEND ACTION; see `downbeat task add --help`",
        ));
    }
    let mut task = json!({"name": name, "blocking": options.blocking});
    options.work.set(&mut task, action)?;
    Ok(task)
}

/// Reads the words after the options: the action, and more options.
pub(super) fn read<O: Args>(
    verb: &'static str,
    options: &mut O,
    global: &mut Global,
    words: Vec<String>,
) -> Result<Option<InlineAction>> {
    if words.is_empty() {
        return Ok(None);
    }
    let late_command = || -> Command { inline::late_command::<O>(verb) };
    let command = format!("downbeat task {verb} NAME");
    let (action, late) = inline::read(words, &command, &late_command())?;
    inline::update(late, late_command(), options, global)?;
    Ok(Some(action))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command as Noun};
    use crate::out::Format;
    use crate::task::Verb;

    fn read_line(line: &[&str]) -> Result<(Value, Format), String> {
        let words = ["downbeat", "task", "add"].into_iter().chain(line.iter().copied());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let mut global = cli.global;
        let Noun::Task(Verb::Add(AddArgs { name, mut options, action })) = cli.command else {
            panic!("another command")
        };
        let action = read("add", &mut options, &mut global, action).map_err(|failure| failure.message)?;
        let task = new_task(&name, &options, action).map_err(|failure| failure.message)?;
        Ok((task, global.output))
    }

    #[test]
    fn a_command_needs_neither_backend_nor_action() {
        let line = ["install", "--command", "apt-get update && true", "--blocking", "--working-dir", "/opt"];
        let (task, _) = read_line(&line).unwrap();
        let expected = json!({
            "name": "install", "blocking": true, "command": "apt-get update && true", "working_dir": "/opt",
        });
        assert_eq!(task, expected);
    }

    #[test]
    fn options_are_understood_before_the_backend_and_after_the_action() {
        let line = ["e", "--blocking", "test", "echo", "--message", "hi", "--timeout", "1m", "-o", "json"];
        let (task, format) = read_line(&line).unwrap();
        let expected = json!({
            "name": "e", "blocking": true, "backend": "test", "action": "echo", "params": {"message": "hi"},
            "timeout": "1m",
        });
        assert_eq!((task, format), (expected, Format::Json));
        // A param of the action wins over the option of the same name.
        let (task, _) = read_line(&["x", "exec", "run", "--command", "id"]).unwrap();
        assert_eq!((&task["params"], task.get("command")), (&json!({"command": "id"}), None));
    }

    #[test]
    fn a_selector_of_every_node_is_left_out() {
        let selector = |given: &str| {
            let (task, _) = read_line(&["x", "--command", "id", "--selector", given]).unwrap();
            task["selector"].clone()
        };
        assert_eq!(selector("all"), Value::Null);
        assert_eq!(selector("group:web"), json!("group:web"));
        assert_eq!(read_line(&["x", "--command", "id"]).unwrap().0.get("selector"), None);
    }

    #[test]
    fn a_line_without_sense_is_refused_with_the_right_way() {
        for (line, expected) in [
            (&["x"][..], "nothing to do: write --command COMMAND, or BACKEND ACTION"),
            (&["x", "exec"], "ACTION is missing: backend `exec` has run, shell"),
            (&["x", "--comand", "id"], "did you mean `--command`?"),
            (&["x", "--command", "id", "test", "noop"], "cannot be used together"),
            (&["--command", "id"], "required arguments were not provided"),
            (&["x", "--command", "id", "--timeout", "soon"], "soon"),
        ] {
            let message = read_line(line).map(|_| ()).unwrap_err();
            assert!(message.contains(expected), "{line:?}: {message}");
        }
    }
}
