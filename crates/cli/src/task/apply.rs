//! `task apply`: makes the standing tasks of a cluster those of a file.

use clap::Args;
use downbeat_api::request;
use downbeat_client::{Body, Client};
use downbeat_core::backend::Params;
use serde_json::json;

use super::which::cluster;
use crate::connect::failure_in;
use crate::exit::Result;
use crate::job::JobFile;
use crate::out::Out;
use crate::render::{Applied, list_changes};

#[derive(Debug, Args)]
#[command(
    after_help = "The file has the whole list, in its order. A task with a known name is changed, others are added, and \
    tasks that the file lacks are deleted:\n\n  \
    tasks:\n    \
      - name: install\n      \
        blocking: true\n      \
        command: apt-get install -y nginx\n      \
        timeout: 10m\n    \
      - name: restart\n      \
        backend: systemd\n      \
        action: restart\n      \
        params: {unit: nginx.service}\n      \
        selector: group:web"
)]
pub(crate) struct ApplyArgs {
    /// File with a list of `tasks`, YAML or JSON; `-` reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: String,
    /// Only show the differences
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(args: &ApplyArgs, client: &Client, out: Out) -> Result {
    let (text, name) = JobFile::read(&args.file)?.text()?;
    let request = request::apply_tasks(cluster(client)).with_any("dry_run", args.dry_run.then_some(1));
    let body = Body::Definition { text, params: Params::new(), no_cache: false };
    let applied = client.send(request, body, None).await.map_err(|error| failure_in(error, Some(&name)))?;
    out.result(&json!({"dry_run": args.dry_run, "changes": applied.changes}), || {
        let how = if args.dry_run { Applied::DryRun } else { Applied::Done };
        list_changes(&applied.changes, cluster(client), how, out.width())
    })
}
