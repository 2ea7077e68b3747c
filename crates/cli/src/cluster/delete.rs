//! `cluster delete`: asks for the name of the cluster, because nothing of it is kept.

use std::io::{self, BufRead, IsTerminal};

use clap::Args;
use downbeat_api::{Cluster, request};
use downbeat_client::Client;
use serde_json::json;

use super::Which;
use crate::exit::{Code, Failure, Result};
use crate::out::Out;
use crate::render::plural;

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    which: Which,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

pub(super) async fn run(args: DeleteArgs, client: &Client, out: Out) -> Result {
    let cluster = client.ask(request::cluster(&args.which.name)).await?;
    if !args.yes {
        confirm(&cluster, out)?;
    }
    client.ask(request::delete_cluster(cluster.id)).await?;
    out.result(&json!({"id": cluster.id, "name": cluster.name, "deleted": true}), || {
        format!("cluster {} is deleted; its agents exit", cluster.name)
    })
}

/// Asks the person at the terminal to type the name.
fn confirm(cluster: &Cluster, out: Out) -> Result {
    let Cluster { name, .. } = cluster;
    if !io::stdin().is_terminal() {
        return Err(Failure::bad_input(format!(
            "standard input is not a terminal, so nobody can be asked; --yes deletes cluster `{name}` without a question"
        )));
    }
    let (nodes, tasks) = (plural(cluster.nodes, "node"), plural(cluster.tasks, "standing task"));
    out.note(&format!(
        "cluster {name} has {nodes} and {tasks}; they are deleted with its runs, results and events, and its agents exit"
    ));
    out.note("type the name of the cluster to delete it:");
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    read.map_err(|error| Failure::bad_input(format!("cannot read standard input: {error}")))?;
    check(line.trim_end_matches(['\r', '\n']), name)
}

fn check(typed: &str, name: &str) -> Result {
    if typed == name {
        return Ok(());
    }
    Err(Failure::new(Code::Refused, format!("`{typed}` is not `{name}`; nothing was deleted")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_name_deletes_a_cluster() {
        assert_eq!(check("prod", "prod"), Ok(()));
        for typed in ["", "y", "yes", "Prod", "prod ", "pro"] {
            let failure = check(typed, "prod").unwrap_err();
            assert_eq!(failure.code, Code::Refused, "{typed:?}");
            assert!(failure.message.ends_with("nothing was deleted"), "{}", failure.message);
        }
    }
}
