//! Reads `triggers`: a list of maps, each with `http`, `job` or `event`.

use super::field::{Checker, Hint, NOT_CLEAN, misspelt};
use super::path::Path;
use super::tree::{Entry, Node};
use crate::backend::Params;
use crate::expr::Template;
use crate::limits;
use crate::nearest::advice;
use crate::shown::shown;
use crate::spec::{
    Definition, EventKind, EventTrigger, HookAuth, HttpTrigger, JobTrigger, On, RunEnding, SecretSource,
    Trigger,
};

/// The fields of an HTTP trigger that other tools have.
const OF_HTTP: &[Hint] = &[
    ("secret", WRITTEN_SECRET),
    ("token", WRITTEN_SECRET),
    ("hmac", "did you mean `auth: github`, or `auth: slack`?"),
    ("url", "did you mean `path`?"),
];
const WRITTEN_SECRET: &str = "a job file must not contain a secret, because each version of the job is stored and copied. \
     Write it to a file or into the environment of the servers, and use `secret_file: PATH` or `secret_env: NAME`";
const OF_JOB: &[Hint] = &[("job", "did you mean `name`?"), ("status", "did you mean `on`?")];
const OF_EVENT: &[Hint] = &[("name", "did you mean `kind`?"), ("event", "did you mean `kind`?")];

impl Checker<'_> {
    /// Reads the triggers of a job whose other fields, except its tasks, were read.
    pub(super) fn triggers(
        &mut self,
        path: Path<'_>,
        node: &Node<'_>,
        definition: &Definition,
    ) -> Vec<Trigger> {
        let Some(items) = self.list(path, node, "triggers") else { return Vec::new() };
        let (count, most) = (items.len(), limits::TRIGGERS_PER_JOB);
        if !(1..=most).contains(&count) {
            let message = format!("the list has {count} triggers, but needs 1 to {most}");
            self.problem(path, node.at, message);
            return Vec::new();
        }
        let mut triggers: Vec<Trigger> = Vec::with_capacity(count);
        for (index, item) in items.iter().enumerate() {
            let path = path.index(index);
            let Some(trigger) = self.trigger(path, item, definition) else { continue };
            let is_same = |other: &&Trigger| match (&trigger, other) {
                (Trigger::Http(one), Trigger::Http(other)) => one.path == other.path,
                (one, other) => *one == **other,
            };
            if triggers.iter().find(is_same).is_some() {
                self.problem(path, item.at, "the list has this trigger twice; remove one");
            }
            triggers.push(trigger);
        }
        triggers
    }

    fn trigger(&mut self, path: Path<'_>, node: &Node<'_>, definition: &Definition) -> Option<Trigger> {
        let [entry] = self.map(path, node, "one field: http, job or event")? else {
            return self.refuse_kind(path, node, "a map of one field: http, job or event");
        };
        let (field, value) = (path.field(&entry.key), &entry.value);
        let trigger = match entry.key.as_ref() {
            "http" => Trigger::Http(self.http_trigger(field, value)?),
            "job" => Trigger::Job(self.job_trigger(field, value)?),
            "event" => Trigger::Event(self.event_trigger(field, value)?),
            _ => {
                self.unknown_field(path, entry, &[On::Trigger], &[]);
                return None;
            }
        };
        if let Some(name) = definition.name.as_deref().filter(|name| trigger.source() == Some(name)) {
            let message = format!("a job cannot start itself: {0} → {0}", shown(name));
            self.problem(field, value.at, message);
        }
        self.trigger_params(field, value, &trigger, definition);
        Some(trigger)
    }

    fn http_trigger(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<HttpTrigger> {
        let entries = self.fields_of(path, node, On::HttpTrigger)?;
        let (mut hook, mut auth, mut params) = (None, None, Params::new());
        let mut secrets: Vec<(&Entry<'_>, Option<SecretSource>)> = Vec::new();
        for entry in entries {
            let (field, value) = (path.field(&entry.key), &entry.value);
            match entry.key.as_ref() {
                "path" => hook = Some(self.identifier(field, value)?),
                "auth" => auth = Some(self.choice(field, value, &HookAuth::ALL)?),
                "secret_env" => {
                    secrets.push((entry, self.env_name(field, value).map(SecretSource::Env)));
                }
                "secret_file" => {
                    secrets.push((entry, self.absolute(field, value).map(SecretSource::File)));
                }
                "params" => params = self.set_params(field, value),
                _ => self.unknown_field(path, entry, &[On::HttpTrigger], OF_HTTP),
            }
        }
        if hook.is_none() && !misspelt(entries, "path", &[On::HttpTrigger]) {
            self.problem(path, node.at, "the field `path` is missing: the trigger is POST /hooks/PATH");
        }
        if auth.is_none() && !misspelt(entries, "auth", &[On::HttpTrigger]) {
            let message = "the field `auth` is missing: secret, github or slack; `none` lets every client start the job";
            self.problem(path, node.at, message);
        }
        let (hook, auth) = (hook?, auth?);
        let secret = match (auth, secrets.as_slice()) {
            (HookAuth::None, []) => None,
            (HookAuth::None, [(entry, _), ..]) => {
                let message = "with `auth: none` no secret is checked; remove it, or set another `auth`";
                return self.refuse(path.field(&entry.key), entry.at, message);
            }
            (_, [(_, secret)]) => Some(secret.clone()?),
            (_, [_, (entry, _), ..]) => {
                let message = "a trigger has either `secret_env` or `secret_file`; remove one";
                return self.refuse(path.field(&entry.key), entry.at, message);
            }
            // The secret itself was written instead: that was reported.
            (_, []) if entries.iter().any(|entry| matches!(&*entry.key, "secret" | "token")) => return None,
            (_, []) => {
                let message = format!(
                    "`auth: {auth}` needs a secret: `secret_env: NAME` is a variable of the servers' environment, \
                     `secret_file: PATH` a file on their machines"
                );
                return self.refuse(path, node.at, message);
            }
        };
        Some(HttpTrigger { path: hook, auth, secret, params })
    }

    fn job_trigger(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<JobTrigger> {
        let entries = self.fields_of(path, node, On::JobTrigger)?;
        let (mut name, mut on, mut params) = (None, RunEnding::default(), Params::new());
        for entry in entries {
            let (field, value) = (path.field(&entry.key), &entry.value);
            match entry.key.as_ref() {
                "name" => name = Some(self.identifier(field, value)?),
                "on" => on = self.choice(field, value, &RunEnding::ALL)?,
                "params" => params = self.set_params(field, value),
                _ => self.unknown_field(path, entry, &[On::JobTrigger], OF_JOB),
            }
        }
        if name.is_none() && !misspelt(entries, "name", &[On::JobTrigger]) {
            self.problem(path, node.at, "the field `name` is missing: the job whose runs start this one");
        }
        Some(JobTrigger { name: name?, on, params })
    }

    fn event_trigger(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<EventTrigger> {
        let entries = self.fields_of(path, node, On::EventTrigger)?;
        let (mut kind, mut group, mut job, mut params) = (None, None, None, Params::new());
        for entry in entries {
            let (field, value) = (path.field(&entry.key), &entry.value);
            match entry.key.as_ref() {
                "kind" => kind = Some(self.choice(field, value, &EventKind::ALL)?),
                "group" => group = Some((entry, self.group(field, value)?)),
                "job" => job = Some((entry, self.identifier(field, value)?)),
                "params" => params = self.set_params(field, value),
                _ => self.unknown_field(path, entry, &[On::EventTrigger], OF_EVENT),
            }
        }
        if kind.is_none() && !misspelt(entries, "kind", &[On::EventTrigger]) {
            let kinds = EventKind::ALL.map(EventKind::as_str).join(", ");
            self.problem(path, node.at, format!("the field `kind` is missing: one of {kinds}"));
        }
        let kind: EventKind = kind?;
        let (other, what) = if kind.is_of_nodes() { (&job, "nodes") } else { (&group, "runs") };
        if let Some((entry, _)) = other {
            let message = format!("`{kind}` is an event of {what}; remove `{}`", entry.key);
            return self.refuse(path.field(&entry.key), entry.at, message);
        }
        let text = |found: Option<(&Entry<'_>, String)>| found.map(|(_, text)| text);
        Some(EventTrigger { kind, group: text(group), job: text(job), params })
    }

    fn set_params(&mut self, path: Path<'_>, node: &Node<'_>) -> Params {
        self.job_params(path, node).unwrap_or_default()
    }

    fn group(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<String> {
        let text = self.text(path, node, "the name of a group")?;
        if text.is_empty() || text.contains(char::is_control) || text.len() > limits::NODE_TEXT_BYTES {
            return self.refuse(path, node.at, NOT_CLEAN);
        }
        Some(text.to_owned())
    }

    pub(super) fn env_name(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<String> {
        let text = self.text(path, node, "the name of a variable")?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if text.is_empty() || text.starts_with(|c: char| c.is_ascii_digit()) || !text.chars().all(is_name) {
            let message =
                format!("`{}` is not the name of a variable; use letters, digits and `_`", shown(text));
            return self.refuse(path, node.at, message);
        }
        if text.starts_with("DOWNBEAT_") {
            let message = "variables that begin with DOWNBEAT_ are settings; choose another name";
            return self.refuse(path, node.at, message);
        }
        self.short_enough(path, node, text)
    }

    pub(super) fn absolute(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<String> {
        let text = self.text(path, node, "the path of a file")?;
        let is_long = text.len() > limits::PATH_BYTES;
        if !text.starts_with('/') || text.contains(char::is_control) || is_long {
            let message = "must be an absolute path on the servers, such as /etc/downbeat/deploy.secret";
            return self.refuse(path, node.at, message);
        }
        Some(text.to_owned())
    }

    /// Checks that the trigger sets params that the job has, all that have no default, and from known values.
    fn trigger_params(
        &mut self,
        path: Path<'_>,
        node: &Node<'_>,
        trigger: &Trigger,
        definition: &Definition,
    ) {
        let (declared, given) = (&definition.params, trigger.params());
        let params = node.field("params").unwrap_or(node);
        let names: Vec<&str> = declared.keys().map(String::as_str).collect();
        let field = path.field("params");
        for name in given.keys().filter(|name| !declared.contains_key(*name)) {
            let at = params.field(name).map_or(params.at, |value| value.at);
            let message = if names.is_empty() {
                format!("the job has no params; declare it: params: {{{}: DEFAULT}}", shown(name))
            } else {
                format!("the job has no param `{}`; {}", shown(name), advice(name, &names, "params"))
            };
            self.problem(field.field(name), at, message);
        }
        let is_unset = |name: &&String| given.get(*name).is_none_or(serde_json::Value::is_null);
        let must = declared.iter().filter(|(_, default)| default.is_null()).map(|(name, _)| name);
        for name in must.filter(is_unset) {
            let message =
                format!("the param `{}` of the job has no default; the trigger must set it", shown(name));
            self.problem(field, params.at, message);
        }
        match Template::of_trigger(given) {
            Ok(None) => {}
            Ok(Some(template)) => {
                for problem in template.check_trigger(trigger) {
                    self.param_problem(field, params, problem);
                }
            }
            Err(problem) => self.param_problem(field, params, problem),
        }
    }
}
