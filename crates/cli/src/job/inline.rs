//! The definition of a run of one task, from the command line.

use clap::Command;
use downbeat_client::Client;
use downbeat_core::backend::Catalogue;
use serde_json::{Value, json};

use super::run::RunOptions;
use crate::args::Global;
use crate::exit::{Failure, Result};
use crate::inline::{self, InlineAction};

/// One task, and the options, including those after ACTION.
#[derive(Debug)]
pub(super) struct Inline {
    pub(super) options: RunOptions,
    pub(super) global: Global,
    action: InlineAction,
}

impl Inline {
    /// Returns the definition. Params of a backend that only nodes have get the types that a node declares.
    pub(super) async fn definition(self, client: &Client) -> Result<Value> {
        let action = self.action.with_node_schema(client).await?;
        Ok(definition(&action, &self.options, &self.global))
    }
}

pub(super) fn read(mut options: RunOptions, mut global: Global, words: Vec<String>) -> Result<Inline> {
    if let [word] = words.as_slice() {
        check_word(word)?;
    }
    if let [word, next, ..] = words.as_slice()
        && next.starts_with('-')
    {
        check_word(word)?;
    }
    let (action, late) = inline::read(words, "downbeat job run", &late_command())?;
    inline::update(late, late_command(), &mut options, &mut global)?;
    if options.following.wait && options.following.watch {
        return Err(Failure::bad_input("--wait and --watch cannot be used together"));
    }
    Ok(Inline { options, global, action })
}

/// Returns whether the words name a stored job: one word that is not a backend, before any options.
pub(super) fn is_stored_job(words: &[String]) -> bool {
    let is_alone = |next: Option<&String>| next.is_none_or(|next| next.starts_with('-'));
    let ends = [".yaml", ".yml", ".json"];
    words.first().is_some_and(|word| {
        !word.starts_with('-')
            && !ends.iter().any(|end| word.ends_with(end))
            && !std::path::Path::new(word).is_file()
            && Catalogue::builtin().backend(word).is_err()
            && is_alone(words.get(1))
    })
}

/// A stored job to run, and the options, including those after its name.
#[derive(Debug)]
pub(super) struct StoredJob {
    pub(super) name: String,
    pub(super) options: RunOptions,
    pub(super) global: Global,
}

/// Reads `NAME [OPTIONS]`.
pub(super) fn read_stored(
    mut options: RunOptions,
    mut global: Global,
    words: Vec<String>,
) -> Result<StoredJob> {
    let mut words = words.into_iter();
    let name = words.next().unwrap_or_default();
    inline::update(words.collect(), late_command(), &mut options, &mut global)?;
    if options.following.wait && options.following.watch {
        return Err(Failure::bad_input("--wait and --watch cannot be used together"));
    }
    let of_task = [
        ("--target", options.target.is_some()),
        ("--timeout", options.timeout.is_some()),
        ("--max-retries", options.max_retries.is_some()),
    ];
    if let Some((option, _)) = of_task.iter().find(|(_, is_set)| *is_set) {
        return Err(Failure::bad_input(format!(
            "{option} is not possible for a stored job: `{name}` has its own"
        )));
    }
    Ok(StoredJob { name, options, global })
}

fn definition(action: &InlineAction, options: &RunOptions, global: &Global) -> Value {
    let mut task = json!({"backend": action.backend, "action": action.action, "params": action.params});
    if let Some(timeout) = options.timeout {
        task["timeout"] = json!(timeout);
    }
    if let Some(retries) = options.max_retries {
        task["max_retries"] = json!(retries);
    }
    let mut definition = json!({"tasks": [task]});
    match &options.target {
        Some(target) => definition["target"] = json!(target),
        None => definition["placement"] = json!({}),
    }
    if let Some(cluster) = &global.cluster {
        definition["cluster"] = json!(cluster);
    }
    definition
}

/// Explains a word without an action that is a file.
fn check_word(word: &str) -> Result {
    let is_file = [".yaml", ".yml", ".json"].iter().any(|end| word.ends_with(end));
    if is_file || std::path::Path::new(word).is_file() {
        return Err(Failure::bad_input(format!("`{word}` is a file; write `downbeat job run -f {word}`")));
    }
    Ok(())
}

/// Returns the options that are also accepted after ACTION.
fn late_command() -> Command {
    // `--file` is not accepted here, but clap refuses a conflict with an unknown argument.
    inline::late_command::<RunOptions>("job run").arg(clap::Arg::new("file").long("file").hide(true))
}

#[cfg(test)]
mod tests {
    use clap::{FromArgMatches, Parser};

    use super::*;
    use crate::args::Cli;
    use crate::out::Format;

    impl Inline {
        fn written(&self) -> Value {
            definition(&self.action, &self.options, &self.global)
        }
    }

    fn read_words(words: &[&str]) -> Result<Inline> {
        let global = Cli::try_parse_from(["downbeat", "status"]).unwrap().global;
        let none: [&str; 0] = [];
        let matches = late_command().get_matches_from(none);
        let options = RunOptions::from_arg_matches(&matches).unwrap();
        read(options, global, words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn params_take_the_types_that_the_action_declares() {
        let inline = read_words(&[
            "exec",
            "run",
            "--command",
            "uptime -p",
            "--env",
            "A=1",
            "--env=B=2",
            "--working-dir",
            "/",
        ])
        .unwrap();
        assert_eq!(
            inline.written(),
            json!({"placement": {}, "tasks": [{"backend": "exec", "action": "run", "params":
                {"command": "uptime -p", "env": {"A": "1", "B": "2"}, "working_dir": "/"}}]})
        );
        let inline = read_words(&["test", "fail", "--exit-code", "7"]).unwrap();
        assert_eq!(inline.written()["tasks"][0]["params"], json!({"exit_code": 7}));
    }

    #[test]
    fn options_of_the_run_are_understood_after_the_action() {
        let inline = read_words(&[
            "test",
            "noop",
            "--target",
            "all",
            "--wait",
            "-o",
            "json",
            "--timeout=5s",
            "--max-retries",
            "2",
        ])
        .unwrap();
        assert!(inline.options.following.wait);
        assert_eq!(inline.global.output, Format::Json);
        assert_eq!(
            inline.written(),
            json!({"target": "all", "tasks": [{"backend": "test", "action": "noop", "params": {}, "timeout": "5s", "max_retries": 2}]})
        );
    }

    #[test]
    fn an_option_before_the_backend_is_not_undone_by_one_after_the_action() {
        use crate::args::Command as Noun;
        use crate::job::Verb;

        let line = "downbeat job run --watch -o yaml --target all test noop --timeout 5s";
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let Noun::Job(Verb::Run(args)) = cli.command else { panic!("another command") };
        let inline = read(args.options, cli.global, args.task).unwrap();
        assert!(inline.options.following.watch);
        assert_eq!((inline.global.output, inline.options.target.as_deref()), (Format::Yaml, Some("all")));
    }

    #[test]
    fn one_word_that_is_not_a_backend_is_a_stored_job() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (text, expected) in [
            ("etl", true),
            ("etl --param a=1 --wait", true),
            ("exec", false),
            ("exec --wait", false),
            ("etl run", false),
            ("etl.yaml", false),
            ("--wait", false),
            ("", false),
        ] {
            assert_eq!(is_stored_job(&words(text)), expected, "{text}");
        }
        let global = Cli::try_parse_from(["downbeat", "status"]).unwrap().global;
        let none: [&str; 0] = [];
        let options = RunOptions::from_arg_matches(&late_command().get_matches_from(none)).unwrap();
        let read = |text: &str| read_stored(options.clone(), global.clone(), words(text));
        let stored = read("etl --param a=1 --wait -o json").unwrap();
        assert_eq!((stored.name.as_str(), stored.global.output), ("etl", Format::Json));
        assert!(stored.options.following.wait);
        assert_eq!(stored.options.param, ["a=1"]);
        let refused = read("etl --target all").unwrap_err();
        assert!(refused.message.starts_with("--target is not possible"), "{}", refused.message);
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (words, expected) in [
            (vec![], "BACKEND is missing"),
            (vec!["exec"], "ACTION is missing: backend `exec` has run, shell"),
            (vec!["job.yaml", "--watch"], "`job.yaml` is a file; write `downbeat job run -f job.yaml`"),
            (vec!["etl.yaml"], "write `downbeat job run -f etl.yaml`"),
            (vec!["--wiat", "test", "noop"], "did you mean `--wait`?"),
            (vec!["exec", "run", "uptime"], "unexpected `uptime`"),
            (vec!["exec", "run", "--command"], "`--command` has no value"),
            (vec!["exec", "run", "--command", "--stdin", "x"], "`--command` has no value"),
            (vec!["test", "noop", "--timeout", "soon"], "soon"),
            (vec!["test", "noop", "--wait", "--watch"], "cannot be used"),
        ] {
            let failure = read_words(&words).unwrap_err();
            assert!(failure.message.contains(expected), "{words:?}: {}", failure.message);
        }
    }
}
