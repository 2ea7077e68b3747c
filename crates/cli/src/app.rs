//! Owns the way from arguments to an exit code.

use std::future::Future;
use std::panic;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::client::Client;
use crate::exit::{Code, Failure};
use crate::out::Out;
use crate::{bench, completions, event, job, node, run, serve, server_list, status};

/// The whole program.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors and go to standard output; clap knows which is which.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Code::BadInput as u8));
        }
    };
    let out = Out::new(cli.global.output);
    panic::set_hook(Box::new(move |panicked| out.note(&format!("bug: {}", one_line(&panicked.to_string())))));
    match panic::catch_unwind(move || dispatch(cli, out)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => {
            out.failure(&failure);
            failure.code.into()
        }
        // The hook has said what happened.
        Err(_) => Code::Bug.into(),
    }
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

fn dispatch(cli: Cli, out: Out) -> Result<(), Failure> {
    let Cli { global, command } = cli;
    let client = || Client::new(&global);
    match command {
        Command::Dev(args) => on_all_cores(serve::dev::run(args, out)),
        Command::Server(args) => on_all_cores(serve::server::run(args, out)),
        Command::Agent(args) => on_all_cores(serve::agent::run(args, global.clone(), out)),
        Command::Bench(args) if args.is_modest() => on_one_thread(bench::run(args, out)),
        Command::Bench(args) => on_all_cores(bench::run(args, out)),
        Command::Job(verb) => on_one_thread(job::run(verb, &global, out)),
        Command::Run(verb) => on_one_thread(run::run(verb, &client()?, out)),
        Command::Node(verb) => on_one_thread(node::run(verb, &client()?, out)),
        Command::Event(verb) => on_one_thread(event::run(verb, &client()?, out)),
        Command::ServerList => on_one_thread(server_list::run(&client()?, out)),
        Command::Status => on_one_thread(status::run(&client()?, out)),
        Command::Guard => serve::guard::run(out),
        Command::Completions { shell } => completions::run(shell, out),
    }
}

/// For what serves: the whole machine.
fn on_all_cores<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    blocked_on(tokio::runtime::Builder::new_multi_thread(), work)
}

/// For what asks: starts faster, and has one thing to do.
fn on_one_thread<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    blocked_on(tokio::runtime::Builder::new_current_thread(), work)
}

fn blocked_on<T>(
    mut runtime: tokio::runtime::Builder,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let runtime = runtime
        .enable_all()
        .build()
        .map_err(|error| Failure::bug(format!("cannot start the runtime: {error}")))?;
    let result = runtime.block_on(work);
    // Reading standard input cannot be called off; waiting for it would hang the end.
    runtime.shutdown_background();
    result
}
