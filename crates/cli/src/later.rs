//! Owns the error for a command that does not exist: a command of a later version, a verb of another noun, or a typing
//! error.

use clap::{Command, CommandFactory};
use downbeat_core::nearest::nearest;
use downbeat_core::shown::shown;

use crate::args::Cli;
use crate::exit::Failure;

const ACCOUNTS: &str = "logins and permissions are not available in this version: anyone who reaches the server can do \
                        everything; keep its ports inside a network that you trust";

/// Commands of later versions: noun, verbs (empty: all), and what to use instead.
#[rustfmt::skip]
const LATER: &[(&str, &[&str], &str)] = &[
    ("node", &["revoke"], ACCOUNTS),
    ("top", &[], "`top` is not available in this version; `downbeat status` and `downbeat run watch last` show the same"),
    ("audit", &[],
        "`audit` is not available in this version; `downbeat event list` shows what happened and who requested it"),
    ("login", &[], ACCOUNTS),
    ("logout", &[], ACCOUNTS),
    ("whoami", &[], ACCOUNTS),
    ("user", &[], ACCOUNTS),
    ("token", &[], ACCOUNTS),
    ("ca", &[], ACCOUNTS),
    ("context", &[], "contexts are not available in this version; set DOWNBEAT_SERVER"),
    ("secret", &[], "secrets are not available in this version; keep them in files on the nodes"),
    ("kubernetes", &[], "`kubernetes` is not available in this version"),
];

/// Returns the error for `downbeat NOUN VERB …` without such a verb; without a noun, for `downbeat WORD …`.
pub(crate) fn unknown(noun: Option<&str>, words: &[String]) -> Failure {
    let word = words.first().map(String::as_str).unwrap_or_default();
    let of_later = |(later, verbs, _): &&(&str, &[&str], &str)| match noun {
        Some(noun) => *later == noun && verbs.contains(&word),
        None => *later == word && verbs.is_empty(),
    };
    if let Some((_, _, instead)) = LATER.iter().find(of_later) {
        return Failure::bad_input(*instead);
    }
    let all = Cli::command();
    let here = match noun {
        Some(noun) => all.find_subcommand(noun).unwrap_or(&all),
        None => &all,
    };
    let path = noun.map(|noun| format!("downbeat {noun}")).unwrap_or_else(|| "downbeat".to_owned());
    let meant =
        nearest(word, names(here)).map(|near| format!("{path} {near}")).or_else(|| elsewhere(&all, word));
    let advice = match meant {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("commands: {}", names(here).collect::<Vec<_>>().join(", ")),
    };
    Failure::bad_input(format!("`{path}` has no command `{}`; {advice}", shown(word)))
}

fn names(command: &Command) -> impl Iterator<Item = &str> {
    command.get_subcommands().map(Command::get_name)
}

/// Returns the command of another noun with this verb: `downbeat logs` is `downbeat run logs`.
fn elsewhere(all: &Command, word: &str) -> Option<String> {
    // Runs first: users look for them most often.
    let first = all.find_subcommand("run").into_iter();
    let has = |noun: &&Command| noun.find_subcommand(word).is_some();
    first.chain(all.get_subcommands()).find(has).map(|noun| format!("downbeat {} {word}", noun.get_name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;
    use crate::{args, cluster, job, node, run, schedule, task};

    #[test]
    fn a_command_that_does_not_exist_is_answered_in_one_line_that_helps() {
        for (words, expected) in [
            ("job aply -f x.yaml", "did you mean `downbeat job apply`?"),
            ("schedule list", "`downbeat schedule` has no command `list`; did you mean `downbeat run list`?"),
            ("schedule preveiw", "did you mean `downbeat schedule preview`?"),
            ("top", "`top` is not available in this version"),
            ("cluster lsit", "did you mean `downbeat cluster list`?"),
            ("task frobnicate", "`downbeat task` has no command `frobnicate`; commands: add, list"),
            ("node revoke web-01", "logins and permissions are not available"),
            ("login", "logins and permissions are not available"),
            ("job logs last", "`downbeat job` has no command `logs`; did you mean `downbeat run logs`?"),
            ("logs last", "did you mean `downbeat run logs`?"),
            ("nodes", "did you mean `downbeat node`?"),
            ("job vaildate", "did you mean `downbeat job validate`?"),
            ("node frobnicate", "`downbeat node` has no command `frobnicate`; commands: list, show"),
            ("frobnicate", "`downbeat` has no command `frobnicate`; commands: dev, server"),
        ] {
            let failure = refusal(words);
            assert!(failure.message.contains(expected), "{words}: {}", failure.message);
            assert_eq!((failure.code, failure.message.lines().count()), (Code::BadInput, 1), "{words}");
        }
    }

    /// Parses the words as the program does.
    fn refusal(words: &str) -> Failure {
        use clap::Parser;

        let words = ["downbeat"].into_iter().chain(words.split(' '));
        let cli = Cli::try_parse_from(words).expect("unknown commands are read");
        match cli.command {
            args::Command::Unknown(words) => unknown(None, &words),
            args::Command::Job(job::Verb::Unknown(words)) => unknown(Some("job"), &words),
            args::Command::Run(run::Verb::Unknown(words)) => unknown(Some("run"), &words),
            args::Command::Node(node::Verb::Unknown(words)) => unknown(Some("node"), &words),
            args::Command::Schedule(schedule::Verb::Unknown(words)) => unknown(Some("schedule"), &words),
            args::Command::Cluster(cluster::Verb::Unknown(words)) => unknown(Some("cluster"), &words),
            args::Command::Task(task::Verb::Unknown(words)) => unknown(Some("task"), &words),
            other => panic!("{other:?} is known"),
        }
    }
}
