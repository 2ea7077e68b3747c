//! Reads the job's fields about the life of its runs: `constraints`, `overlap`, `deadline`, and actions; and checks which
//! fields may be combined.

use std::collections::BTreeMap;

use super::field::{Checker, Hint, misspelt};
use super::path::Path;
use super::task::timeouts;
use super::tree::{Content, Entry, Node};
use crate::backend::{Params, params_bytes};
use crate::limits;
use crate::shown::shown;
use crate::span::Span;
use crate::spec::params::is_storable;
use crate::spec::{Action, ActionKind, At, Constraints, Definition, HttpHook, IfUnknown, On, Overlap, What};

/// The names that other tools use for the fields of `constraints`.
const OTHER_NAMES: &[Hint] = &[
    ("max_concurrent", "did you mean `max_concurrent_runs`?"),
    ("concurrency", "did you mean `max_concurrent_runs`?"),
    ("max_active_runs", "did you mean `max_concurrent_runs`?"),
    ("depends_on_past", "did you mean `require_previous_success`?"),
    ("catch_up", "put it under `schedule`"),
];

/// The positions of the fields that the rules refer to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LifeFields {
    pub(super) constraints: Option<At>,
    pub(super) overlap: Option<At>,
    pub(super) on_violation: Option<At>,
}

impl Checker<'_> {
    pub(super) fn constraints(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Constraints> {
        let mut constraints = Constraints::default();
        let spans = || timeouts(limits::RUN_TIMEOUT_MOST_S);
        for entry in self.fields_of(path, node, On::Constraints)? {
            let field = path.field(&entry.key);
            let value = &entry.value;
            match entry.key.as_ref() {
                "max_concurrent_runs" => {
                    constraints.max_concurrent_runs =
                        self.whole_number(field, value, 1..=limits::CONCURRENT_RUNS_MOST);
                }
                "require_previous_success" => {
                    constraints.require_previous_success = self.boolean(field, value).unwrap_or_default();
                }
                "max_expected" => constraints.max_expected = self.span(field, value, spans()),
                "max_allowed" => constraints.max_allowed = self.span(field, value, spans()),
                "pre_run_hook" => constraints.pre_run_hook = self.hook(field, value),
                "post_run_hook" => constraints.post_run_hook = self.hook(field, value),
                "if_unknown" => constraints.if_unknown = self.choice(field, value, &IfUnknown::ALL),
                _ => self.unknown_field(path, entry, &[On::Constraints], OTHER_NAMES),
            }
        }
        Some(constraints)
    }

    fn hook(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<HttpHook> {
        let entries = self.fields_of(path, node, On::Hook)?;
        let (mut url, mut timeout, mut if_unknown) = (None, None, None);
        let mut headers = BTreeMap::new();
        for entry in entries {
            let field = path.field(&entry.key);
            let value = &entry.value;
            match entry.key.as_ref() {
                "url" => url = Some(self.url(field, value)),
                "timeout" => timeout = self.span(field, value, timeouts(limits::HOOK_TIMEOUT_MOST_S)),
                "headers" => headers = self.headers(field, value).unwrap_or_default(),
                "if_unknown" => if_unknown = self.choice(field, value, &IfUnknown::ALL),
                _ => self.unknown_field(path, entry, &[On::Hook], &[]),
            }
        }
        if url.is_none() && !misspelt(entries, "url", &[On::Hook]) {
            self.problem(path, node.at, "the field `url` is missing: where the call goes");
        }
        Some(HttpHook { url: url??, timeout, headers, if_unknown })
    }

    fn headers(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<BTreeMap<String, String>> {
        let entries = self.map(path, node, "names with their values")?;
        if entries.len() > limits::HOOK_HEADERS {
            let (count, most) = (entries.len(), limits::HOOK_HEADERS);
            return self.refuse(
                path,
                node.at,
                format!("there are {count} headers; at most {most} are possible"),
            );
        }
        let mut headers = BTreeMap::new();
        for entry in entries {
            let field = path.field(&entry.key);
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if entry.key.is_empty() || !entry.key.chars().all(is_name) {
                let message = format!("`{}` is not the name of a header", shown(&entry.key));
                self.problem(field, entry.at, message);
                continue;
            }
            let Some(text) = self.text(field, &entry.value, "a text") else { continue };
            let is_value = |c: char| c == ' ' || c.is_ascii_graphic();
            if !text.chars().all(is_value) || entry.key.len() + text.len() > limits::HEADER_BYTES {
                let most = limits::HEADER_BYTES;
                let message = format!("the value of a header is printable ASCII of at most {most} bytes");
                self.problem(field, entry.value.at, message);
            } else {
                headers.insert(entry.key.to_ascii_lowercase(), text.to_owned());
            }
        }
        Some(headers)
    }

    /// Reads an action or a list of them. `valid` are the actions that the field may have.
    pub(super) fn actions(&mut self, path: Path<'_>, node: &Node<'_>, valid: &[ActionKind]) -> Vec<Action> {
        let Content::List(items) = node.content() else {
            return self.life_action(path, node, valid).into_iter().collect();
        };
        let (count, most) = (items.len(), limits::ACTIONS);
        if !(1..=most).contains(&count) {
            self.problem(path, node.at, format!("the list has {count} actions, but needs 1 to {most}"));
            return Vec::new();
        }
        let mut actions: Vec<Action> = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let Some(action) = self.life_action(path.index(index), item, valid) else { continue };
            let decides = |action: &Action| action.what.kind().decides();
            if decides(&action)
                && let Some(other) = actions.iter().find(|other| decides(other))
            {
                let message = format!(
                    "`{}` and `{}` exclude each other: only one action decides about the run",
                    other.what.kind(),
                    action.what.kind()
                );
                self.problem(path.index(index), item.at, message);
            }
            actions.push(action);
        }
        actions
    }

    fn life_action(&mut self, path: Path<'_>, node: &Node<'_>, valid: &[ActionKind]) -> Option<Action> {
        let entries = self.fields_of(path, node, On::Action)?;
        let of = |name: &str| entries.iter().find(|entry| entry.key == name);
        let Some(kind) = of("action") else {
            if !misspelt(entries, "action", &[On::Action]) {
                let words: Vec<&str> = valid.iter().map(|kind| kind.as_str()).collect();
                let message = format!("the field `action` is missing: one of {}", words.join(", "));
                self.problem(path, node.at, message);
            }
            return None;
        };
        let kind = self.life_action_kind(path.field("action"), &kind.value, valid)?;
        let mut critical = false;
        let needed: &[&str] = match kind {
            ActionKind::Skip | ActionKind::KillOld | ActionKind::Wait => &[],
            ActionKind::RetryLater => &["delay"],
            ActionKind::TriggerJob => &["job", "params"],
            ActionKind::Webhook | ActionKind::Slack | ActionKind::Email => {
                if let Some(entry) = of("critical") {
                    critical = self.boolean(path.field("critical"), &entry.value).unwrap_or_default();
                }
                let notification = self.notification(path, node, entries, kind.as_str())?;
                return Some(Action { what: What::Notify(notification), critical });
            }
        };
        for entry in entries {
            let key = entry.key.as_ref();
            match key {
                "action" => {}
                "critical" => {
                    critical = self.boolean(path.field(key), &entry.value).unwrap_or_default();
                }
                "delay" | "job" | "params" if !needed.contains(&key) => {
                    let message = format!("`{kind}` has no `{key}`; remove it");
                    self.problem(path.field(key), entry.at, message);
                }
                "delay" | "job" | "params" => {}
                _ => self.unknown_field(path, entry, &[On::Action], &[]),
            }
        }
        let missing = needed.iter().find(|name| **name != "params" && of(name).is_none());
        if let Some(name) = missing {
            if !misspelt(entries, name, &[On::Action]) {
                self.problem(path, node.at, format!("`{kind}` needs the field `{name}`"));
            }
            return None;
        }
        let value = |name: &str| of(name).map(|entry| &entry.value);
        let what = match kind {
            ActionKind::Skip => What::Skip,
            ActionKind::KillOld => What::KillOld,
            ActionKind::Wait => What::Wait,
            ActionKind::RetryLater => {
                let delays = timeouts(limits::TASK_TIMEOUT_MOST_S);
                What::RetryLater { delay: self.span(path.field("delay"), value("delay")?, delays)? }
            }
            ActionKind::Webhook | ActionKind::Slack | ActionKind::Email => return None,
            ActionKind::TriggerJob => {
                let job = self.identifier(path.field("job"), value("job")?);
                let params = match value("params") {
                    Some(params) => self.params_of_job(path.field("params"), params)?,
                    None => Params::new(),
                };
                What::TriggerJob { job: job?, params }
            }
        };
        Some(Action { what, critical })
    }

    fn life_action_kind(
        &mut self,
        path: Path<'_>,
        node: &Node<'_>,
        valid: &[ActionKind],
    ) -> Option<ActionKind> {
        let known = node.as_text().and_then(ActionKind::parse);
        match known {
            Some(kind) if !valid.contains(&kind) => {
                self.refuse(path, node.at, format!("`{kind}` is an action of `on_violation` only"))
            }
            _ => self.choice(path, node, valid),
        }
    }

    /// Reads values for the params of another job.
    fn params_of_job(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<Params> {
        if matches!(node.content(), Content::Null) {
            return Some(Params::new());
        }
        let mut params = Params::new();
        for entry in self.map(path, node, "names with their values")? {
            let value = entry.value.to_value();
            if !is_storable(&value, limits::NESTING_DEPTH) {
                self.problem(path.field(&entry.key), entry.value.at, "contains a NUL character; remove it");
            }
            params.insert(entry.key.clone().into_owned(), value);
        }
        let (bytes, most) = (params_bytes(&params), limits::PARAMS_BYTES);
        self.params_bytes += bytes;
        if bytes > most {
            let message = format!("the params are {bytes} bytes; at most {most} are possible");
            return self.refuse(path, node.at, message);
        }
        Some(params)
    }

    /// Checks which fields about the life of runs may be combined.
    pub(super) fn life_rules(&mut self, definition: &Definition, fields: LifeFields, top: &[Entry<'_>]) {
        let path = Path::Top;
        let counts = definition.constraints.as_ref().is_some_and(|all| all.max_concurrent_runs.is_some());
        let overlaps = definition.overlap.is_some_and(|overlap| overlap != Overlap::Allow);
        if let Some(at) = fields.overlap
            && counts
        {
            let message = "a job has either `overlap` or `max_concurrent_runs`";
            self.problem(path.field("overlap"), at, message);
        }
        let decision = definition.on_violation.iter().find(|action| action.what.kind().decides());
        if let (Some(action), Some(at)) = (decision, fields.on_violation) {
            let kind = action.what.kind();
            if overlaps {
                let message = format!("`overlap` decides about the run; remove the action `{kind}`");
                self.problem(path.field("on_violation"), at, message);
            } else if kind == ActionKind::KillOld && !counts {
                let message = "`kill_old` needs `max_concurrent_runs` in `constraints`";
                self.problem(path.field("on_violation"), at, message);
            }
        }
        if let Some(at) = fields.on_violation
            && fields.constraints.is_none()
            && !overlaps
        {
            let message = "without `constraints` nothing can be violated; remove it";
            self.problem(path.field("on_violation"), at, message);
        }
        let names = counts || overlaps || definition.requires_previous_success();
        if let Some(at) = fields.constraints.or(fields.overlap)
            && names
            && !top.iter().any(|entry| entry.key == "name")
        {
            let message = "the field `name` is missing: the runs of a job are known by its name";
            self.problem(path.field("name"), at, message);
        }
    }
}

/// The actions of each field.
pub(super) const ON_VIOLATION: &[ActionKind] = &ActionKind::ALL;
pub(super) const ON_END: &[ActionKind] =
    &[ActionKind::Webhook, ActionKind::Slack, ActionKind::Email, ActionKind::TriggerJob];

/// Returns the span of a deadline.
pub(super) fn deadlines() -> std::ops::RangeInclusive<Span> {
    timeouts(limits::RUN_TIMEOUT_MOST_S)
}
