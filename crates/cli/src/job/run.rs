//! `job run`: submits a task or a job file, and stays with the run if asked to.

use clap::Args;
use downbeat_api::request;
use downbeat_client::Body;
use downbeat_core::backend::{Catalogue, Params};
use downbeat_core::{Span, spec};

use super::file::JobFile;
use super::inline::{self, Inline};
use super::params;
use crate::args::Global;
use crate::connect::{connect, failure_in};
use crate::exit::Failure;
use crate::out::Out;
use crate::render::{absences, started_line};
use crate::run::{wait, watch};

#[derive(Debug, Args)]
#[command(
    override_usage = "downbeat job run [OPTIONS] BACKEND ACTION [--KEY VALUE]...\n       \
                      downbeat job run [OPTIONS] --file FILE",
    after_help = "Examples:\n  \
        downbeat job run --target all --watch exec run --command 'uptime -p'\n  \
        downbeat job run --target group:web exec run --command env --env A=1 --env B=2\n  \
        downbeat job run --file deploy.yaml --param version=1.4 --wait"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(super) options: RunOptions,

    /// Job file, YAML or JSON; `-` reads standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "task")]
    file: Option<String>,

    /// One task: backend, action and the action's params. A param that is repeated is a list
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "BACKEND ACTION [--KEY VALUE]",
        required_unless_present = "file"
    )]
    task: Vec<String>,
}

/// What belongs to the run and not to the task. Understood before BACKEND, and after ACTION too where the action has
/// no param of that name.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunOptions {
    /// Where: all, group:web, node:web-01, or a selector; without it a task runs once, on a node that fits
    #[arg(long, value_name = "TARGET")]
    pub(super) target: Option<String>,

    /// Wait for the end, then show the run; the exit code is the run's result
    #[arg(long, conflicts_with = "watch")]
    pub(super) wait: bool,

    /// Show the progress until the end; the exit code is the run's result
    #[arg(long)]
    pub(super) watch: bool,

    /// Submitting again with the same key returns the first run
    #[arg(long, value_name = "KEY")]
    pub(super) idempotency_key: Option<String>,

    /// One task: how long an attempt may take, such as 30s or 10m
    #[arg(long, value_name = "DURATION", conflicts_with = "file")]
    pub(super) timeout: Option<Span>,

    /// One task: how often it is tried again when it failed
    #[arg(long, value_name = "N", conflicts_with = "file")]
    pub(super) max_retries: Option<u32>,

    /// A job file: a param of the job, repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    pub(super) param: Vec<String>,

    /// Do everything, also what a task with `cache` has done before with equal inputs
    #[arg(long)]
    pub(super) no_cache: bool,
}

/// What is to be run.
enum Asked {
    File { name: String, body: Body },
    Task(Box<Inline>),
}

/// Says what is valid in a definition, and probably not meant. What is not valid, the server says.
fn note_signs(text: &str, file: &str, out: Out) {
    let Ok(noted) = spec::parse_noting(text, file, &Catalogue::builtin()) else { return };
    for note in &noted.notes {
        // The one task of a command line has no place in a file.
        out.note(&if file.is_empty() { note.message.clone() } else { note.render(file) });
    }
}

pub(super) async fn run(args: RunArgs, global: &Global, out: Out) -> Result<(), Failure> {
    let (options, global, asked, target) = match args.file {
        Some(path) => {
            let (text, name) = JobFile::read(&path)?.text()?;
            note_signs(&text, &name, out);
            let target = args.options.target.clone();
            let params = params::read(&args.options.param)?;
            let no_cache = args.options.no_cache;
            let body = Body::Definition { text, params, no_cache };
            (args.options, global.clone(), Asked::File { name, body }, target)
        }
        None => {
            let inline = inline::read(args.options, global.clone().or_environment(), args.task)?;
            let (options, global) = (inline.options.clone(), inline.global.clone());
            if !options.param.is_empty() {
                return Err(Failure::bad_input(
                    "--param is for job files; the params of one task are written --KEY VALUE",
                ));
            }
            (options, global, Asked::Task(Box::new(inline)), None)
        }
    };
    // What was said after ACTION may have named another server or format.
    let client = connect(&global)?;
    let out = out.with_format(global.output);
    let (file, body) = match asked {
        Asked::File { name, body } => (Some(name), body),
        Asked::Task(inline) => {
            let text = inline.with_node_schema(&client).await?.to_string();
            note_signs(&text, "", out);
            (None, Body::Definition { text, params: Params::new(), no_cache: options.no_cache })
        }
    };
    // The definition of one task names its cluster itself.
    let cluster = client.cluster().filter(|_| file.is_some());
    let request = request::submit().with_any("target", target).with_any("cluster", cluster);
    // A key of its own lets the client repeat what a broken connection left unanswered.
    let key = options.idempotency_key.clone().unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let submitted = client.send(request, body, Some(&key)).await;
    let run = submitted.map_err(|error| failure_in(error, file.as_deref()))?;
    let id = run.summary.id.clone();
    absences(&run).iter().for_each(|absence| out.note(absence));
    if options.watch {
        watch(id, &client, out).await
    } else if options.wait {
        wait(id, &client, out).await
    } else {
        out.result(&run, || started_line(&run.summary))?;
        Ok(())
    }
}
