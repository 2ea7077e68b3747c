//! Owns the shape of the command line: nouns, verbs and the options that all of them share.

use clap::builder::Styles;
use clap::builder::styling::AnsiColor;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::{Shell, generate};

use crate::exit::Result;
use crate::out::{Format, Out};
use crate::{cluster, debug, delivery, event, job, node, run, schedule, serve, task};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(AnsiColor::Cyan.on_default());

/// Runs jobs on many machines and shows their results.
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

/// The options of every command, accepted before or after its verb.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Output format: table, json or yaml
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

    /// URL of the server, or DOWNBEAT_SERVER [default: http://127.0.0.1:4680]; several, repeated or comma-separated, are
    /// tried in order; for `agent`: HOST:PORT to connect to, repeatable
    #[arg(long, global = true, value_name = "ADDR")]
    pub(crate) server: Vec<String>,

    /// Name of the cluster, or DOWNBEAT_CLUSTER [default: default]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
}

impl Global {
    /// Fills unset flags from the environment.
    pub(crate) fn or_environment(mut self) -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if self.server.is_empty() {
            self.server.extend(variable("DOWNBEAT_SERVER"));
        }
        self.cluster = self.cluster.or_else(|| variable("DOWNBEAT_CLUSTER"));
        self
    }
}

/// Prints the script with which a shell completes our commands.
pub(crate) fn print_completions(shell: Shell, out: Out) -> Result {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "downbeat", &mut script);
    out.text(&String::from_utf8_lossy(&script))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a server and nodes in one process, to try things out
    Dev(serve::dev::DevArgs),
    /// Start a server
    Server(serve::server::ServerArgs),
    /// Start this machine's agent
    Agent(serve::agent::AgentArgs),
    /// Store, run, plan, check and import jobs
    #[command(subcommand)]
    Job(job::Verb),
    /// Show when schedules fire
    #[command(subcommand)]
    Schedule(schedule::Verb),
    /// List, show, follow, pause, cancel and retry runs
    #[command(subcommand)]
    Run(run::Verb),
    /// List, show, drain, reset and delete nodes
    #[command(subcommand)]
    Node(node::Verb),
    /// Create, list, show and delete clusters
    #[command(subcommand)]
    Cluster(cluster::Verb),
    /// List and change the standing tasks, which every node of the cluster does
    #[command(subcommand)]
    Task(task::Verb),
    /// Run a command on a node now, or on each node of a selector, and show its output
    Debug(debug::DebugArgs),
    /// List, show and send again webhooks and notifications
    #[command(subcommand)]
    Delivery(delivery::Verb),
    /// List events in order
    #[command(subcommand)]
    Event(event::Verb),
    /// List the servers that share this store
    ServerList,
    /// Show the whole system at a glance
    Status,
    /// Measure: tasks per second, latency, memory
    Bench(downbeat_bench::BenchArgs),
    /// Stop the tasks of an agent that died; agents start it
    #[command(hide = true)]
    Guard,
    /// Print shell completions to standard output
    Completions {
        #[arg(value_enum)]
        shell: Shell,
    },
    /// A command that does not exist, with its arguments
    #[command(external_subcommand)]
    Unknown(Vec<String>),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Collects the path of every command.
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
