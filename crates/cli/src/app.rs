//! Turns arguments into an exit code.

use std::panic;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use tokio::runtime::Builder;

use crate::args::{Cli, Command};
use crate::connect::connect;
use crate::exit::{Code, Failure, Result};
use crate::out::{Format, Out};
use crate::{
    args, bench, cluster, debug, delivery, event, job, later, node, run, schedule, serve, status, task,
};

/// The limit of an agent's threads that wait for files. Tokio ends each after ten seconds without work.
const AGENT_BLOCKING_THREADS: usize = 32;

pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are not errors and go to standard output; clap knows which is which.
            if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                let _ = error.print();
                return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Code::BadInput as u8));
            }
            let failure = Failure::bad_input(mistake(&error.to_string()));
            Out::new(Format::default()).failure(&failure);
            return failure.code.into();
        }
    };
    let out = Out::new(cli.global.output);
    panic::set_hook(Box::new(move |panicked| out.note(&format!("bug: {}", one_line(&panicked.to_string())))));
    match panic::catch_unwind(move || dispatch(cli, out)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => {
            out.failure(&failure);
            failure.exit_code()
        }
        // The hook has printed it.
        Err(_) => Code::Bug.into(),
    }
}

/// Shortens clap's error text to one line: the mistake, clap's suggestion, and the command whose help explains it.
fn mistake(text: &str) -> String {
    let mut parts = text.trim().split("\n\n").map(one_line);
    let first = parts.next().unwrap_or_default();
    let mut text = plain(first.trim_start_matches("error: "));
    let mut command = None;
    for part in parts {
        if let Some(tip) = part.strip_prefix("tip: ") {
            // clap also explains how to pass a flag as a value, which is never what the user meant.
            let tips = tip.split(" tip: ").filter(|tip| !tip.starts_with("to pass '"));
            tips.for_each(|tip| text.push_str(&format!("; {tip}")));
        } else if let Some(usage) = part.strip_prefix("Usage: ") {
            let words =
                usage.split(' ').take_while(|word| !word.starts_with(['[', '<', '-']) && word.is_ascii());
            let lower = words.filter(|word| !word.contains(char::is_uppercase)).collect::<Vec<_>>();
            command = Some(lower.join(" "));
        } else if part.starts_with('[') {
            text.push_str(&format!(" {part}"));
        }
    }
    // Somebody wrote the command of a node right after the node.
    if command.as_deref() == Some("downbeat debug") && text.starts_with("unexpected argument") {
        text.push_str("; write the command after `--`: downbeat debug NODE -- COMMAND");
    }
    match command {
        Some(command) => format!("{text}; see `{command} --help`"),
        None => text,
    }
}

/// Replaces phrases of Rust's standard library and of clap by plain ones.
fn plain(text: &str) -> String {
    text.replace("the following required arguments were not provided:", "missing:")
        .replace(": invalid digit found in string", ": not a whole number")
        .replace(": cannot parse integer from empty string", ": not a whole number")
        .replace("number too large to fit in target type", "too large")
        .replace("number too small to fit in target type", "too small")
        .replace("invalid socket address syntax", "write IP:PORT, such as 127.0.0.1:4680")
        .replace(" is not in 1..=1000", " is not from 1 to 1000")
        .replace(" is not in 0..=1000", " is not from 0 to 1000")
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

fn dispatch(cli: Cli, out: Out) -> Result {
    let Cli { global, command } = cli;
    let client = || connect(&global);
    let on_all_cores = Builder::new_multi_thread;
    // An agent uses few threads: the machine belongs to its tasks.
    let mut on_two_threads = Builder::new_multi_thread();
    on_two_threads.worker_threads(2).max_blocking_threads(AGENT_BLOCKING_THREADS);
    match command {
        Command::Dev(args) => block_on(on_all_cores(), serve::dev::run(args, out)),
        Command::Server(args) => block_on(on_all_cores(), serve::server::run(args, out)),
        Command::Agent(args) => block_on(on_two_threads, serve::agent::run(args, global.clone(), out)),
        Command::Bench(args) if args.is_modest() => on_one_thread(bench::run(args, out)),
        Command::Bench(args) => block_on(on_all_cores(), bench::run(args, out)),
        Command::Job(verb) => on_one_thread(job::run(verb, &global, out)),
        Command::Schedule(verb) => schedule::run(verb, out),
        Command::Run(verb) => on_one_thread(run::exec(verb, &client()?, out)),
        Command::Node(verb) => on_one_thread(node::run(verb, &client()?, out)),
        Command::Cluster(verb) => on_one_thread(cluster::run(verb, &client()?, out)),
        Command::Task(verb) => on_one_thread(task::run(verb, &global, out)),
        Command::Debug(args) => on_one_thread(debug::run(args, &client()?, out)),
        Command::Delivery(verb) => on_one_thread(delivery::run(verb, &client()?, out)),
        Command::Event(verb) => on_one_thread(event::run(verb, &client()?, out)),
        Command::ServerList => on_one_thread(status::servers(&client()?, out)),
        Command::Status => on_one_thread(status::run(&client()?, out)),
        Command::Guard => serve::guard::run(out),
        Command::Completions { shell } => args::print_completions(shell, out),
        Command::Unknown(words) => Err(later::unknown(None, &words)),
    }
}

/// Runs a client command: one thread starts faster and is enough.
fn on_one_thread(work: impl Future<Output = Result>) -> Result {
    block_on(Builder::new_current_thread(), work)
}

fn block_on(mut runtime: Builder, work: impl Future<Output = Result>) -> Result {
    let failed = |error| Failure::bug(format!("cannot start the runtime: {error}"));
    let runtime = runtime.enable_all().build().map_err(failed)?;
    let result = runtime.block_on(work);
    // A blocked read of standard input cannot be cancelled; waiting for it would block the exit.
    runtime.shutdown_background();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_in_the_arguments_is_one_line_that_names_the_help() {
        let mut text = String::new();
        for line in [
            "run show",
            "run show last --node",
            "node list --limit 0",
            "node list --limit many",
            "node list --statsu online",
            "job plan",
            "job import crontab",
            "schedule preview",
            "schedule preview --cron @daily --file job.yaml",
            "schedule preview --cron @daily --count 0",
            "schedule preview --cron @daily --after soon",
            "schedule preview --cron @daily --missed-since 2026-01-01T00:00:00Z",
            "job run --wait --watch test noop",
            "job run -f a --timeout 5s",
            "job run --timeout soon test noop",
            "status -o xml",
            "dev --http nowhere",
            "server --frobnicate",
            "completions tcsh",
            "run logs last extra words",
            "cluster create",
            "cluster create a --on-register maybe",
            "cluster status a --limit 5",
            "cluster status a --nodes --all --limit 5",
            "task add",
            "task show",
            "task reorder",
            "task apply",
            "task rerun install",
            "task rerun install --failed --all",
            "task rerun install --node web-01 --all",
            "task logs install",
            "debug web-01 uname -a",
        ] {
            let words = ["downbeat"].into_iter().chain(line.split(' '));
            let error = Cli::try_parse_from(words).expect_err(line);
            let message = mistake(&error.to_string());
            assert_eq!(message.lines().count(), 1, "{message}");
            text.push_str(&format!("downbeat {line}\n  {message}\n"));
        }
        insta::assert_snapshot!(text);
    }
}
