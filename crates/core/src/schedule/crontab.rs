//! Turns the lines of a crontab into job files, and names what a job cannot express.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::Rule;
use crate::backend::Catalogue;
use crate::limits;
use crate::shown::shown;
use crate::spec;

/// What a crontab does not contain.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The time zone of the machine. A `CRON_TZ` in the crontab replaces it.
    pub timezone: Option<String>,
    /// Where the jobs run.
    pub target: Option<String>,
    /// The lines have a user before the command, as in `/etc/crontab`.
    pub has_users: bool,
}

/// The jobs of a crontab.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    pub jobs: Vec<ImportedJob>,
    /// Lines that did not become a job.
    pub left_out: Vec<Remark>,
    /// What jobs do in another way than cron.
    pub notes: Vec<Remark>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ImportedJob {
    pub line: usize,
    pub name: String,
    /// The job file.
    pub definition: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    pub line: usize,
    pub message: String,
}

/// Reads a crontab.
pub fn import(text: &str, options: &ImportOptions) -> Imported {
    let mut import =
        Import { options, variables: BTreeMap::new(), names: BTreeSet::new(), all: Imported::default() };
    for (index, line) in text.lines().enumerate() {
        let (number, line) = (index + 1, line.trim());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match variable(line) {
            Some((name, value)) => import.set(number, name, value),
            None => {
                if let Err(message) = import.entry(number, line) {
                    import.all.left_out.push(Remark { line: number, message });
                }
            }
        }
    }
    import.all
}

struct Import<'o> {
    options: &'o ImportOptions,
    /// The variables that are set so far. They apply to the lines after them.
    variables: BTreeMap<String, String>,
    names: BTreeSet<String>,
    all: Imported,
}

impl Import<'_> {
    fn note(&mut self, line: usize, message: String) {
        // A note about each line of a user, or about each MAILTO, would hide the others.
        if self.all.notes.iter().all(|note| note.message != message) {
            self.all.notes.push(Remark { line, message });
        }
    }

    fn set(&mut self, line: usize, name: &str, value: &str) {
        if ["MAILTO", "MAILFROM"].contains(&name) {
            if !value.is_empty() {
                let message =
                    "no mail is sent; `downbeat run list` and `downbeat run logs` show results and output";
                self.note(line, message.to_owned());
            }
            return;
        }
        self.variables.insert(name.to_owned(), value.to_owned());
    }

    fn entry(&mut self, line: usize, text: &str) -> Result<(), String> {
        // Some crons use `-` to keep a line out of their log.
        let text = text.strip_prefix('-').unwrap_or(text);
        let (cron, rest) = split_schedule(text)
            .ok_or("is not a line of a crontab: 5 fields, or @daily and the like, and a command")?;
        cron.parse::<Rule>().map_err(|error| format!("`{}`: {error}", shown(&cron)))?;
        let rest = if self.options.has_users {
            let (user, rest) = rest.split_once(char::is_whitespace).ok_or("has no command after the user")?;
            self.note(
                line,
                format!("the user `{}` is not part of a job; the agent's user runs it", shown(user)),
            );
            rest.trim_start()
        } else {
            rest
        };
        let (command, stdin) = command_and_input(rest);
        if command.is_empty() {
            return Err("has no command".to_owned());
        }
        if rest.contains("{{") {
            return Err(
                "contains `{{`, which begins an expression in a job file; put the command into a script"
                    .to_owned(),
            );
        }
        let name = self.name(&command);
        let task = self.task(&command, stdin.as_deref());
        let definition = self.definition(line, &name, &cron, &task)?;
        if let Err(problems) = spec::from_json(&definition, &Catalogue::builtin()) {
            return Err(problems.iter().map(ToString::to_string).next().unwrap_or_default());
        }
        self.all.jobs.push(ImportedJob { line, name, definition });
        Ok(())
    }

    fn definition(&mut self, line: usize, name: &str, cron: &str, task: &Value) -> Result<Value, String> {
        let mut definition = json!({"name": name, "schedule": self.schedule(line, cron)?, "tasks": [task]});
        match &self.options.target {
            Some(target) => definition["target"] = json!(target),
            None => {
                let message = "without a target a job runs on any node that fits; --target node:HOST keeps it on its machine";
                self.note(line, message.to_owned());
            }
        }
        Ok(definition)
    }

    fn schedule(&mut self, line: usize, cron: &str) -> Result<Value, String> {
        let mut schedule = json!({ "cron": cron });
        match self.variables.get("CRON_TZ").or(self.options.timezone.as_ref()) {
            Some(zone) => {
                let zone = super::Zone::named(zone).map_err(|error| format!("CRON_TZ: {error}"))?;
                schedule["timezone"] = json!(zone.name());
            }
            None => {
                let message = "cron uses the time zone of its machine, and the jobs use UTC; --timezone sets another one";
                self.note(line, message.to_owned());
            }
        }
        if let Some(minutes) = self.variables.get("RANDOM_DELAY") {
            let most = limits::JITTER_MOST_S / 60;
            let minutes = minutes.parse::<u64>().ok().filter(|minutes| *minutes <= most);
            let minutes =
                minutes.ok_or_else(|| format!("RANDOM_DELAY is not a number of minutes up to {most}"))?;
            schedule["jitter"] = json!(format!("{minutes}m"));
        }
        Ok(schedule)
    }

    /// Returns the task that runs a command as cron does.
    fn task(&self, command: &str, stdin: Option<&str>) -> Value {
        // `exec shell` is bash, which runs the scripts of sh.
        let is_other = |shell: &&String| !["/bin/sh", "/bin/bash", "/usr/bin/bash"].contains(&shell.as_str());
        let mut task = match self.variables.get("SHELL").filter(is_other) {
            Some(shell) => json!({"action": "run", "params": {"command": [shell, "-c", command]}}),
            None => json!({"action": "shell", "params": {"command": command}}),
        };
        task["backend"] = json!("exec");
        if let Some(stdin) = stdin {
            task["params"]["stdin"] = json!(stdin);
        }
        // Cron starts commands in HOME.
        if let Some(home) = self.variables.get("HOME") {
            task["params"]["working_dir"] = json!(home);
        }
        let own = ["SHELL", "CRON_TZ", "RANDOM_DELAY"];
        let env: BTreeMap<&String, &String> =
            self.variables.iter().filter(|(name, _)| !own.contains(&name.as_str())).collect();
        if !env.is_empty() {
            task["params"]["env"] = json!(env);
        }
        task
    }

    /// Returns a name for the job, after the program that it runs.
    fn name(&mut self, command: &str) -> String {
        let is_setting = |word: &&str| word.contains('=') && !word.starts_with(['/', '.']);
        let program = command.split_whitespace().find(|word| !is_setting(word)).unwrap_or_default();
        let base = program.rsplit('/').next().unwrap_or_default();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let clean: String = base.chars().filter(|c| allowed(*c)).take(60).collect();
        let clean = clean.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        let clean = if clean.is_empty() { "job" } else { clean };
        let mut name = clean.to_owned();
        let mut number = 2;
        while !self.names.insert(name.clone()) {
            name = format!("{clean}-{number}");
            number += 1;
        }
        name
    }
}

/// Returns the name and the value of a line `NAME = value`.
fn variable(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let name = unquoted(name.trim());
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then(|| (name, unquoted(value.trim())))
}

fn unquoted(text: &str) -> &str {
    let inside = |quote: char| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    inside('"').or_else(|| inside('\'')).unwrap_or(text)
}

/// Returns the expression, and the rest of the line.
fn split_schedule(line: &str) -> Option<(String, &str)> {
    let count = if line.starts_with('@') { 1 } else { 5 };
    let mut rest = line;
    let mut fields = Vec::new();
    for _ in 0..count {
        let (field, after) = rest.split_once(char::is_whitespace)?;
        fields.push(field);
        rest = after.trim_start();
    }
    Some((fields.join(" "), rest))
}

/// Returns the command, and its input: the text after the first `%`, in which each `%` is a line end. `\%` is a percent
/// sign.
fn command_and_input(text: &str) -> (String, Option<String>) {
    let mut parts = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if letters.peek() == Some(&'%') => {
                letters.next();
                parts.last_mut().expect("there is a part").push('%');
            }
            '%' => parts.push(String::new()),
            other => parts.last_mut().expect("there is a part").push(other),
        }
    }
    let input = (parts.len() > 1).then(|| parts[1..].join("\n") + "\n");
    (parts[0].trim_end().to_owned(), input)
}

#[cfg(test)]
mod tests;
