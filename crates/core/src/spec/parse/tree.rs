//! Owns the tree between text and definition: values with their positions. Texts are borrowed from the source, so that
//! reading a large JSON body costs little.

use std::borrow::Cow;
use std::rc::Rc;

use serde_json::{Number, Value};

use crate::limits;
use crate::spec::At;

#[derive(Clone, Debug)]
pub(super) struct Node<'t> {
    /// The default position when there is no text.
    pub(super) at: At,
    pub(super) content: Content<'t>,
}

/// The value of a node. `written` is the scalar's source, where it differs from the value: `0755`, `True`. Aliases
/// share an anchored value, so that an alias costs nothing even if the value is large.
#[derive(Clone, Debug)]
pub(super) enum Content<'t> {
    Null,
    Boolean { value: bool, written: Option<Cow<'t, str>> },
    Number { value: Number, written: Option<Cow<'t, str>> },
    Text(Cow<'t, str>),
    List(Vec<Node<'t>>),
    Map(Vec<Entry<'t>>),
    Shared(Rc<Node<'t>>),
}

#[derive(Clone, Debug)]
pub(super) struct Entry<'t> {
    pub(super) key: Cow<'t, str>,
    pub(super) at: At,
    pub(super) value: Node<'t>,
}

/// A JSON value that exceeds the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Beyond {
    #[error("values are nested more than {most} levels deep", most = limits::NESTING_DEPTH)]
    Depth,
    #[error("there are more than {most} values", most = limits::JOB_FILE_VALUES)]
    Count,
}

impl<'t> Node<'t> {
    pub(super) fn content(&self) -> &Content<'t> {
        match &self.content {
            Content::Shared(node) => node.content(),
            content => content,
        }
    }

    /// Returns the value of a field, if this is a map that has it.
    pub(super) fn field(&self, name: &str) -> Option<&Node<'t>> {
        let Content::Map(entries) = self.content() else { return None };
        entries.iter().find(|entry| entry.key == name).map(|entry| &entry.value)
    }

    pub(super) fn as_list(&self) -> Option<&[Node<'t>]> {
        if let Content::List(items) = self.content() { Some(items) } else { None }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        if let Content::Text(text) = self.content() { Some(text) } else { None }
    }

    pub(super) fn of_json(value: &'t Value) -> Result<Self, Beyond> {
        let mut left = limits::JOB_FILE_VALUES;
        Self::of_json_within(value, limits::NESTING_DEPTH, &mut left)
    }

    fn of_json_within(value: &'t Value, depth: usize, left: &mut usize) -> Result<Self, Beyond> {
        *left = left.checked_sub(1).ok_or(Beyond::Count)?;
        let below = || depth.checked_sub(1).ok_or(Beyond::Depth);
        let content = match value {
            Value::Null => Content::Null,
            Value::Bool(value) => Content::Boolean { value: *value, written: None },
            Value::Number(number) => Content::Number { value: number.clone(), written: None },
            Value::String(text) => Content::Text(Cow::Borrowed(text)),
            Value::Array(items) => {
                let depth = below()?;
                let items = items.iter().map(|item| Self::of_json_within(item, depth, left));
                Content::List(items.collect::<Result<_, _>>()?)
            }
            Value::Object(entries) => {
                let depth = below()?;
                let entries = entries.iter().map(|(key, value)| {
                    Ok(Entry {
                        key: Cow::Borrowed(key.as_str()),
                        at: At::default(),
                        value: Self::of_json_within(value, depth, left)?,
                    })
                });
                Content::Map(entries.collect::<Result<_, Beyond>>()?)
            }
        };
        Ok(Self { at: At::default(), content })
    }

    pub(super) fn to_value(&self) -> Value {
        match self.content() {
            Content::Null | Content::Shared(_) => Value::Null,
            Content::Boolean { value, .. } => Value::Bool(*value),
            Content::Number { value, .. } => Value::Number(value.clone()),
            Content::Text(text) => Value::String(text.clone().into_owned()),
            Content::List(items) => Value::Array(items.iter().map(Node::to_value).collect()),
            Content::Map(entries) => map_of(entries, Node::to_value),
        }
    }

    /// As `to_value`, but numbers and booleans directly inside keep their source text: `[chmod, 0755]`.
    pub(super) fn to_value_of_texts(&self) -> Value {
        match self.content() {
            Content::List(items) => Value::Array(items.iter().map(Node::as_written).collect()),
            Content::Map(entries) => map_of(entries, Node::as_written),
            _ => self.to_value(),
        }
    }

    fn as_written(&self) -> Value {
        match self.content() {
            Content::Number { written: Some(written), .. }
            | Content::Boolean { written: Some(written), .. } => Value::String(written.clone().into_owned()),
            _ => self.to_value(),
        }
    }
}

fn map_of<'t>(entries: &[Entry<'t>], value: fn(&Node<'t>) -> Value) -> Value {
    Value::Object(entries.iter().map(|entry| (entry.key.clone().into_owned(), value(&entry.value))).collect())
}
