//! Owns the shape of the command line: nouns, verbs and the options that all of them share.

use clap::builder::Styles;
use clap::builder::styling::AnsiColor;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::out::Format;
use crate::{event, job, node, run, serve};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(AnsiColor::Cyan.on_default());

/// Runs jobs on many machines, and shows what became of them.
#[derive(Debug, Parser)]
#[command(
    name = "downbeat",
    version,
    styles = STYLES,
    propagate_version = false,
    disable_help_subcommand = true,
    max_term_width = 100,
    after_help = "Try it out: `downbeat dev` in one terminal, `downbeat job run --target all --watch exec run \
                  --command uptime` in another."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes, before or after its verb.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// How results are printed: table, json or yaml
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        value_name = "FORMAT",
        default_value = "table",
        hide_possible_values = true
    )]
    pub(crate) output: Format,

    /// The server's URL, or DOWNBEAT_SERVER [default: http://127.0.0.1:4680]; several, repeated or with commas, are
    /// tried in turn; for `agent`: HOST:PORT to dial, repeatable
    #[arg(long, global = true, value_name = "ADDR")]
    pub(crate) server: Vec<String>,

    /// The cluster that is meant, or DOWNBEAT_CLUSTER [default: default]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
}

impl Global {
    /// What was not said by a flag may have been said by the environment.
    pub(crate) fn or_environment(mut self) -> Self {
        let said = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if self.server.is_empty() {
            self.server.extend(said("DOWNBEAT_SERVER"));
        }
        self.cluster = self.cluster.or_else(|| said("DOWNBEAT_CLUSTER"));
        self
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Server and nodes in one process, to try things out
    Dev(serve::dev::DevArgs),
    /// Start a server
    Server(serve::server::ServerArgs),
    /// Start this machine's agent
    Agent(serve::agent::AgentArgs),
    /// Run, plan and check jobs
    #[command(subcommand)]
    Job(job::Verb),
    /// Look at runs, follow, pause, cancel and retry them
    #[command(subcommand)]
    Run(run::Verb),
    /// Look at nodes and their work, drain them
    #[command(subcommand)]
    Node(node::Verb),
    /// What happened, in order
    #[command(subcommand)]
    Event(event::Verb),
    /// The servers that share this store
    ServerList,
    /// The whole system at a glance
    Status,
    /// Measure: tasks per second, latency, memory
    Bench(downbeat_bench::BenchArgs),
    /// Ends work of an agent that cannot; agents start it
    #[command(hide = true)]
    Guard,
    /// Completions for a shell, on standard output
    Completions {
        #[arg(value_enum)]
        shell: Shell,
    },
    /// A command that does not exist, and what came after it
    #[command(external_subcommand)]
    Unknown(Vec<String>),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// All commands, as the words that lead to them.
    fn commands(command: &clap::Command, path: &[String], found: &mut Vec<Vec<String>>) {
        found.push(path.to_vec());
        for below in command.get_subcommands() {
            commands(below, &[path, &[below.get_name().to_owned()]].concat(), found);
        }
    }

    #[test]
    fn help_of_every_command() {
        let mut found = Vec::new();
        commands(&Cli::command(), &["downbeat".to_owned()], &mut found);
        let mut text = String::new();
        for path in found {
            let words = path.iter().map(String::as_str).chain(["--help"]);
            let help = Cli::command().term_width(100).try_get_matches_from(words).unwrap_err();
            text.push_str(&format!("### {}\n\n{}\n\n", path.join(" "), help.to_string().trim_end()));
        }
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_arguments_make_sense() {
        Cli::command().debug_assert();
    }
}
