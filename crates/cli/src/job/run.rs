//! `job run`: submits a task, a job file or a stored job, and waits for the run if requested.

use clap::Args;
use downbeat_api::request;
use downbeat_client::Body;
use downbeat_core::backend::{Catalogue, Params};
use downbeat_core::{Span, spec};
use serde_json::json;

use super::file::JobFile;
use super::inline::{self, Inline, StoredJob};
use super::params;
use crate::args::Global;
use crate::connect::{connect, failure_in};
use crate::exit::{Failure, Result};
use crate::out::Out;
use crate::run::Following;

#[derive(Debug, Args)]
#[command(
    override_usage = "downbeat job run [OPTIONS] BACKEND ACTION [--KEY VALUE]...\n       \
                      downbeat job run [OPTIONS] --file FILE\n       \
                      downbeat job run NAME [OPTIONS]",
    after_help = "Examples:\n  \
        downbeat job run --target all --watch exec run --command 'uptime -p'\n  \
        downbeat job run --target group:web exec run --command env --env A=1 --env B=2\n  \
        downbeat job run --file deploy.yaml --param version=1.4 --wait\n  \
        downbeat job run deploy --param version=1.4 --wait"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(super) options: RunOptions,

    /// Job file, YAML or JSON; `-` reads standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "task")]
    file: Option<String>,

    /// One task: backend, action and the action's params; a repeated param is a list
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "BACKEND ACTION [--KEY VALUE]",
        required_unless_present = "file"
    )]
    pub(super) task: Vec<String>,
}

/// The options of the run, not of the task. Accepted before BACKEND, and after ACTION unless the action has a param of
/// that name.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunOptions {
    /// Where to run: all, group:web, node:web-01, or a selector; by default a task runs once, on a node that fits
    #[arg(long, value_name = "TARGET")]
    pub(super) target: Option<String>,

    #[command(flatten)]
    pub(super) following: Following,

    /// One task: how long an attempt may take, such as 30s or 10m
    #[arg(long, value_name = "DURATION", conflicts_with = "file")]
    pub(super) timeout: Option<Span>,

    /// One task: how often it is retried after a failure
    #[arg(long, value_name = "N", conflicts_with = "file")]
    pub(super) max_retries: Option<u32>,

    /// Job file or stored job: a param of the job, repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    pub(super) param: Vec<String>,

    /// Run every task, even if a task with `cache` already succeeded with the same inputs
    #[arg(long)]
    pub(super) no_cache: bool,
}

enum Submission {
    File { name: String, body: Body },
    Task(Box<Inline>),
}

/// Prints notes about valid but probably unintended parts of a definition. The server reports errors.
fn print_notes(text: &str, file: &str, out: Out) {
    let Ok(noted) = spec::parse_noting(text, file, &Catalogue::builtin()) else { return };
    for note in &noted.notes {
        // The only task of a command line has no position in a file.
        out.note(&if file.is_empty() { note.message.clone() } else { note.render(file) });
    }
}

/// Starts a stored job.
async fn run_stored(args: RunArgs, global: &Global, out: Out) -> Result {
    let StoredJob { name, options, global } =
        inline::read_stored(args.options, global.clone().or_environment(), args.task)?;
    let (client, out) = (connect(&global)?, out.with_format(global.output));
    let params = params::read(&options.param)?;
    let body = Body::Json(json!({"params": params, "no_cache": options.no_cache}).to_string());
    let request = request::run_job(&name).with_any("cluster", client.cluster());
    let started = client.send(request, body, Some(&options.following.key())).await;
    let run = started.map_err(|error| failure_in(error, None))?;
    options.following.follow(&run, &client, out).await
}

pub(super) async fn exec(args: RunArgs, global: &Global, out: Out) -> Result {
    if args.file.is_none() && inline::is_stored_job(&args.task) {
        return run_stored(args, global, out).await;
    }
    let (options, global, submission, target) = match args.file {
        Some(path) => {
            let (text, name) = JobFile::read(&path)?.text()?;
            print_notes(&text, &name, out);
            let target = args.options.target.clone();
            let params = params::read(&args.options.param)?;
            let body = Body::Definition { text, params, no_cache: args.options.no_cache };
            (args.options, global.clone(), Submission::File { name, body }, target)
        }
        None => {
            let inline = inline::read(args.options, global.clone().or_environment(), args.task)?;
            let (options, global) = (inline.options.clone(), inline.global.clone());
            if !options.param.is_empty() {
                return Err(Failure::bad_input(
                    "--param is for job files; write the params of one task as --KEY VALUE",
                ));
            }
            (options, global, Submission::Task(Box::new(inline)), None)
        }
    };
    // Options after ACTION may name another server or format.
    let client = connect(&global)?;
    let out = out.with_format(global.output);
    let (file, body) = match submission {
        Submission::File { name, body } => (Some(name), body),
        Submission::Task(inline) => {
            let text = inline.definition(&client).await?.to_string();
            print_notes(&text, "", out);
            (None, Body::Definition { text, params: Params::new(), no_cache: options.no_cache })
        }
    };
    // The definition of one task contains its cluster.
    let cluster = client.cluster().filter(|_| file.is_some());
    let request = request::submit().with_any("target", target).with_any("cluster", cluster);
    let submitted = client.send(request, body, Some(&options.following.key())).await;
    let run = submitted.map_err(|error| failure_in(error, file.as_deref()))?;
    options.following.follow(&run, &client, out).await
}
