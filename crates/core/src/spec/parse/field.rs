//! Reads single fields: texts, numbers, durations, choices, lists. Records each problem and continues.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::path::Path;
use super::tree::{Content, Entry, Node};
use crate::backend::Catalogue;
use crate::limits;
use crate::nearest::{advice, nearest};
use crate::shown::shown;
use crate::span::{NotASpan, Span};
use crate::spec::fields::names;
use crate::spec::{At, On, Problem};

/// The message about an empty text, or one with control characters.
pub(super) const NOT_CLEAN: &str = "must not be empty, nor contain control characters";

/// A field's name, and the text to write instead of it.
pub(super) type Hint = (&'static str, &'static str);

/// Reads the tree once, and records every problem.
#[derive(Debug)]
pub(super) struct Checker<'c> {
    pub(super) catalogue: &'c Catalogue,
    problems: Vec<Problem>,
    /// Notes about text that is valid but probably not intended.
    notes: Vec<Problem>,
    /// The size of the params of all tasks so far.
    pub(super) params_bytes: usize,
}

/// Returns the position of a node, if it was read from a text.
fn known(at: At) -> Option<At> {
    (at != At::default()).then_some(at)
}

impl<'c> Checker<'c> {
    pub(super) fn new(catalogue: &'c Catalogue) -> Self {
        Self { catalogue, problems: Vec::new(), notes: Vec::new(), params_bytes: 0 }
    }

    /// Returns all problems, in the order of the text.
    pub(super) fn into_problems(mut self) -> Vec<Problem> {
        self.problems.sort_by_key(|problem| problem.at);
        self.problems
    }

    pub(super) fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    /// Returns whether enough problems are recorded; more would only cost time.
    pub(super) fn is_full(&self) -> bool {
        self.problems.len() >= limits::PROBLEMS_LISTED
    }

    pub(super) fn problem(&mut self, path: Path<'_>, at: At, message: impl Into<String>) {
        if !self.is_full() {
            self.problems.push(Problem { path: path.to_string(), at: known(at), message: message.into() });
        }
    }

    /// Adds a note about text that is valid but probably not intended.
    pub(super) fn note(&mut self, path: Path<'_>, at: At, message: String) {
        if self.notes.len() < limits::PROBLEMS_LISTED {
            self.notes.push(Problem { path: path.to_string(), at: known(at), message });
        }
    }

    pub(super) fn into_notes(self) -> Vec<Problem> {
        self.notes
    }

    pub(super) fn wrong(&mut self, path: Path<'_>, node: &Node<'_>, valid: &str) {
        self.problem(path, node.at, format!("must be {valid}, not {}", described(node)));
    }

    /// Records a problem, and returns no value.
    pub(super) fn refuse<T>(&mut self, path: Path<'_>, at: At, message: impl Into<String>) -> Option<T> {
        self.problem(path, at, message);
        None
    }

    /// Records that a value is of another kind, and returns none.
    pub(super) fn refuse_kind<T>(&mut self, path: Path<'_>, node: &Node<'_>, valid: &str) -> Option<T> {
        self.wrong(path, node, valid);
        None
    }

    pub(super) fn text<'n>(&mut self, path: Path<'_>, node: &'n Node<'_>, valid: &str) -> Option<&'n str> {
        match node.content() {
            Content::Text(text) => Some(text),
            Content::Number { value, written } => {
                let written = written.as_deref().map_or_else(|| value.to_string(), shown);
                let message =
                    format!("must be {valid}, not the number {written}; write it in quotes: \"{written}\"");
                self.refuse(path, node.at, message)
            }
            _ => self.refuse_kind(path, node, valid),
        }
    }

    pub(super) fn list<'n, 't>(
        &mut self,
        path: Path<'_>,
        node: &'n Node<'t>,
        of: &str,
    ) -> Option<&'n [Node<'t>]> {
        match node.content() {
            Content::List(items) => Some(items),
            Content::Text(text) if text.len() <= 60 => {
                self.refuse(path, node.at, format!("must be a list of {of}; write [{}]", shown(text)))
            }
            _ => self.refuse_kind(path, node, &format!("a list of {of}")),
        }
    }

    pub(super) fn map<'n, 't>(
        &mut self,
        path: Path<'_>,
        node: &'n Node<'t>,
        of: &str,
    ) -> Option<&'n [Entry<'t>]> {
        match node.content() {
            Content::Map(entries) => Some(entries),
            _ => self.refuse_kind(path, node, &format!("a map of {of}")),
        }
    }

    /// Returns the entries of a map with these fields.
    pub(super) fn fields_of<'n, 't>(
        &mut self,
        path: Path<'_>,
        node: &'n Node<'t>,
        map: On,
    ) -> Option<&'n [Entry<'t>]> {
        match node.content() {
            Content::Map(entries) => Some(entries),
            _ => self.refuse_kind(path, node, &format!("a map of {}", names(&[map]).join(", "))),
        }
    }

    /// Reads a list of texts, none of them empty.
    pub(super) fn texts(&mut self, path: Path<'_>, node: &Node<'_>, of: &str) -> Option<Vec<String>> {
        let items = self.list(path, node, of)?;
        let mut texts = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let path = path.index(index);
            if let Some(text) = self.text(path, item, "a string") {
                if text.is_empty() || text.contains(char::is_control) {
                    self.problem(path, item.at, NOT_CLEAN);
                } else {
                    texts.push(text.to_owned());
                }
            }
        }
        Some(texts)
    }

    pub(super) fn whole_number<N: TryFrom<i64> + PartialOrd + Display>(
        &mut self,
        path: Path<'_>,
        node: &Node<'_>,
        range: RangeInclusive<N>,
    ) -> Option<N> {
        let number = match node.content() {
            Content::Number { value, .. } => value.as_i64().and_then(|number| N::try_from(number).ok()),
            _ => None,
        };
        number.filter(|number| range.contains(number)).or_else(|| {
            self.refuse_kind(path, node, &format!("a whole number from {} to {}", range.start(), range.end()))
        })
    }

    pub(super) fn boolean(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<bool> {
        match node.content() {
            Content::Boolean { value, .. } => Some(*value),
            _ => self.refuse_kind(path, node, "true or false"),
        }
    }

    pub(super) fn span(
        &mut self,
        path: Path<'_>,
        node: &Node<'_>,
        range: RangeInclusive<Span>,
    ) -> Option<Span> {
        let text = match node.content() {
            Content::Text(text) if text.len() <= 60 => text,
            Content::Number { value, .. } => {
                let message = format!("must be a duration, not the number {value}; add a unit: {value}s");
                return self.refuse(path, node.at, message);
            }
            _ => return self.refuse_kind(path, node, "a duration such as 500ms, 1.5s, 30m or 1h30m"),
        };
        let span = match text.parse::<Span>() {
            Ok(span) if span.0.subsec_nanos() == 0 => span,
            // Keeps the span as it prints, so that a definition is equal after it was stored and read back.
            Ok(span) => span.to_string().parse::<Span>().unwrap_or(span),
            Err(NotASpan(text)) => return self.refuse(path, node.at, NotASpan(shown(&text)).to_string()),
        };
        if !range.contains(&span) {
            let message = format!("must be from {} to {}, not {}", range.start(), range.end(), shown(text));
            return self.refuse(path, node.at, message);
        }
        Some(span)
    }

    /// Reads one of a closed set of words.
    pub(super) fn choice<T>(&mut self, path: Path<'_>, node: &Node<'_>, valid: &[T]) -> Option<T>
    where
        T: Copy + Into<&'static str>,
    {
        let words: Vec<&str> = valid.iter().map(|value| (*value).into()).collect();
        let Some(found) = node.as_text() else {
            return self.refuse_kind(path, node, &format!("one of: {}", words.join(", ")));
        };
        if let Some(index) = words.iter().position(|word| *word == found) {
            return Some(valid[index]);
        }
        let message = format!("`{}` is unknown; {}", shown(found), advice(found, &words, "valid"));
        self.refuse(path, node.at, message)
    }

    /// Reads the name of a job, which becomes part of addresses and ids.
    pub(super) fn identifier(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<String> {
        let text = self.text(path, node, "a name")?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.is_empty()
            || !text.starts_with(|c: char| c.is_ascii_alphanumeric())
            || !text.chars().all(allowed)
        {
            let message = format!(
                "`{}` is not a name; use letters, digits, `-`, `_` and `.`, and begin with a letter or digit",
                shown(text)
            );
            return self.refuse(path, node.at, message);
        }
        self.short_enough(path, node, text)
    }

    /// Reads the name of a task. It is only shown to users, so it may contain blanks.
    pub(super) fn label(&mut self, path: Path<'_>, node: &Node<'_>) -> Option<String> {
        let text = self.text(path, node, "a name")?;
        if text.trim().is_empty() || text.trim() != text || text.contains(char::is_control) {
            let message = format!(
                "`{}` is not a name; it must not be empty, begin or end with a blank, or hold control characters",
                shown(text)
            );
            return self.refuse(path, node.at, message);
        }
        self.short_enough(path, node, text)
    }

    /// Reports an expression where none is allowed, and returns whether there was one. Backends, actions and targets
    /// must be known before anything runs.
    pub(super) fn refuse_expression(&mut self, path: Path<'_>, node: &Node<'_>, what: &str) -> bool {
        let found = matches!(node.content(), Content::Text(text) if text.contains("{{"));
        if found {
            let message = format!("{what} cannot contain expressions; only `params` of tasks can");
            self.problem(path, node.at, message);
        }
        found
    }

    pub(super) fn short_enough(&mut self, path: Path<'_>, node: &Node<'_>, text: &str) -> Option<String> {
        if text.len() > limits::NAME_BYTES {
            let message =
                format!("the name has {} bytes; at most {} are allowed", text.len(), limits::NAME_BYTES);
            return self.refuse(path, node.at, message);
        }
        Some(text.to_owned())
    }

    /// Reports a field that none of these maps has. `other_names` are the names that other tools use.
    pub(super) fn unknown_field(
        &mut self,
        above: Path<'_>,
        entry: &Entry<'_>,
        maps: &[On],
        other_names: &[Hint],
    ) {
        if self.is_full() {
            return;
        }
        let key = entry.key.as_ref();
        let message = if let Some((_, meant)) = other_names.iter().find(|(name, _)| *name == key) {
            format!("unknown field `{key}`; {meant}")
        } else if key == "<<" {
            "merge keys (`<<`) are not supported; write the fields out".to_owned()
        } else {
            format!("unknown field `{}`; {}", shown(key), advice(key, &names(maps), "fields"))
        };
        self.problem(above.field(key), entry.at, message);
    }
}

/// Describes the value that was found instead.
pub(super) fn described(node: &Node<'_>) -> String {
    match node.content() {
        Content::Null | Content::Shared(_) => "nothing".to_owned(),
        Content::Boolean { value, .. } => value.to_string(),
        Content::Number { value, written } => {
            format!("the number {}", written.as_deref().map_or_else(|| value.to_string(), shown))
        }
        Content::Text(text) if text.is_empty() => "an empty string".to_owned(),
        Content::Text(text) => format!("the string \"{}\"", shown(text)),
        Content::List(items) if items.is_empty() => "an empty list".to_owned(),
        Content::List(_) => "a list".to_owned(),
        Content::Map(_) => "a map".to_owned(),
    }
}

/// Returns whether one of the entries is this field misspelt, so that it is not also reported as missing.
pub(super) fn misspelt(entries: &[Entry<'_>], field: &str, maps: &[On]) -> bool {
    let valid = names(maps);
    entries.iter().take(limits::PROBLEMS_LISTED).map(|entry| entry.key.as_ref()).any(|key| {
        key == "<<" || (!valid.contains(&key) && nearest(key, valid.iter().copied()) == Some(field))
    })
}
