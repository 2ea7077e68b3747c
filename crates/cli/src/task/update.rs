//! `task update`: sends only the fields that are given; the others stay.

use clap::Args;
use downbeat_api::request;
use downbeat_client::Body;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Which;
use super::add::{WorkOptions, read, set};
use crate::args::Global;
use crate::connect::connect;
use crate::exit::{Failure, Result};
use crate::inline::InlineAction;
use crate::out::Out;
use crate::render::standing_task_page;

#[derive(Debug, Args)]
#[command(
    override_usage = "downbeat task update [OPTIONS] TASK\n       \
                      downbeat task update [OPTIONS] TASK BACKEND ACTION [--KEY VALUE]...",
    after_help = "Examples:\n  \
        downbeat task update install --command 'apt-get install -y nginx curl' --timeout 20m\n  \
        downbeat task update install --no-blocking --selector group:web\n  \
        downbeat task rerun install --all        # nodes that have done it do it again"
)]
pub(crate) struct UpdateArgs {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    options: UpdateOptions,

    /// Another action: backend, action and the action's params
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "BACKEND ACTION [--KEY VALUE]")]
    action: Vec<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct UpdateOptions {
    #[command(flatten)]
    work: WorkOptions,
    /// The new name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// If it fails on a node, the node does none of the tasks after it
    #[arg(long)]
    blocking: bool,
    /// If it fails on a node, the node continues with the next task
    #[arg(long, conflicts_with = "blocking")]
    no_blocking: bool,
}

pub(super) async fn run(args: UpdateArgs, global: &Global, out: Out) -> Result {
    let mut global = global.clone().or_environment();
    let mut options = args.options;
    let action = read("update", &mut options, &mut global, args.action)?;
    let (client, out) = (connect(&global)?, out.with_format(global.output));
    let action = match action {
        Some(action) => Some(action.with_node_schema(&client).await?),
        None => None,
    };
    let body = change(&options, action)?;
    let task = args.which.resolve(&client).await?;
    let task = client.send(request::update_task(task.id), Body::Json(body.to_string()), None).await?;
    out.result(&task, || standing_task_page(&task, Timestamp::now(), out.width()))
}

fn change(options: &UpdateOptions, action: Option<InlineAction>) -> Result<Value> {
    let mut task = json!({});
    set(&mut task, "name", options.name.as_ref());
    let blocking = options.blocking.then_some(true).or(options.no_blocking.then_some(false));
    set(&mut task, "blocking", blocking);
    options.work.set(&mut task, action)?;
    if task == json!({}) {
        return Err(Failure::bad_input(
            "nothing to change; see `downbeat task update --help` for the options",
        ));
    }
    Ok(task)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};
    use crate::task::Verb;

    fn read_line(line: &[&str]) -> Result<Value, String> {
        let words = ["downbeat", "task", "update", "install"].into_iter().chain(line.iter().copied());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let mut global = cli.global;
        let Command::Task(Verb::Update(UpdateArgs { mut options, action, .. })) = cli.command else {
            panic!("another command")
        };
        let action = read("update", &mut options, &mut global, action).map_err(|failure| failure.message)?;
        change(&options, action).map_err(|failure| failure.message)
    }

    #[test]
    fn only_fields_that_are_given_are_sent() {
        assert_eq!(read_line(&["--command", "id"]).unwrap(), json!({"command": "id"}));
        assert_eq!(
            read_line(&["--no-blocking", "--name", "b"]).unwrap(),
            json!({"name": "b", "blocking": false})
        );
        assert_eq!(read_line(&["--selector", "all"]).unwrap(), json!({"selector": null}));
        let action = json!({"backend": "test", "action": "noop", "params": {}, "blocking": true});
        assert_eq!(read_line(&["test", "noop", "--blocking"]).unwrap(), action);
        assert!(read_line(&[]).unwrap_err().starts_with("nothing to change"));
        assert!(read_line(&["--blocking", "--no-blocking"]).unwrap_err().contains("cannot be used with"));
    }
}
