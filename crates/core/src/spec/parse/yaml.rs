//! Builds the tree from YAML events. Enforces every bound on hostile text: depth, number of values (an alias counts as
//! its whole value), one document, no tags, no duplicate keys.

use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Tag};

use super::scalar;
use super::tree::{Beyond, Content, Entry, Node};
use crate::limits;
use crate::shown::shown;
use crate::spec::At;

/// The reason why a text is not a valid tree. Only the first is reported: what follows a syntax error cannot be
/// trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotATree {
    pub(super) at: At,
    pub(super) message: String,
    pub(super) cause: Cause,
}

type Result<T> = std::result::Result<T, NotATree>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The text does not follow YAML's grammar.
    Syntax,
    /// The text is valid YAML, but exceeds what a job file may contain.
    Rule,
}

impl NotATree {
    pub(super) fn new(at: At, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), cause: Cause::Rule }
    }
}

/// Parses the tree; `None` when the text contains no value.
pub(super) fn tree(text: &str) -> Result<Option<Node<'_>>> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| syntax(&error))?;
        builder.take(event, position(span.start))?;
    }
    Ok(builder.top)
}

fn position(marker: saphyr_parser::Marker) -> At {
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    At { line: number(marker.line()), column: number(marker.col()).saturating_add(1) }
}

fn syntax(error: &ScanError) -> NotATree {
    let info = error.info();
    let hint = if info.contains("tab") {
        "; indent with spaces, never with tabs"
    } else if info.contains("mapping values are not allowed") || info.contains("illegal placement of ':'") {
        "; is the line indented like its neighbours? a string that contains `: ` needs quotes"
    } else if info.contains("did not find expected key") || info.contains("did not find expected '-'") {
        "; is the line indented like the ones before it?"
    } else if info.contains("unknown anchor") || info.contains("anchor or alias") {
        "; an alias (*name) needs an anchor (&name) before it, and a string that begins with * needs quotes"
    } else if info.contains("unexpected character") || info.contains("cannot start any token") {
        "; a string that begins with this character needs quotes"
    } else if info.contains("quoted scalar") {
        "; is a quote left open?"
    } else if info.contains("flow sequence") || info.contains("flow mapping") {
        "; is a bracket left open, or a comma missing?"
    } else {
        ""
    };
    NotATree {
        at: position(*error.marker()),
        message: format!("not valid YAML: {info}{hint}"),
        cause: Cause::Syntax,
    }
}

/// The size of a complete value, with aliases expanded.
#[derive(Clone, Copy)]
struct Extent {
    values: usize,
    /// Levels of lists and maps, including itself.
    levels: usize,
}

const SCALAR: Extent = Extent { values: 1, levels: 0 };

/// A list or a map that is not complete yet.
struct Unfinished<'t> {
    at: At,
    anchor: usize,
    extent: Extent,
    inside: Inside<'t>,
}

enum Inside<'t> {
    List(Vec<Node<'t>>),
    Map { entries: Vec<Entry<'t>>, key: Option<(Cow<'t, str>, At)>, seen: HashMap<Cow<'t, str>, At> },
}

#[derive(Default)]
struct Builder<'t> {
    open: Vec<Unfinished<'t>>,
    top: Option<Node<'t>>,
    documents: usize,
    values: usize,
    anchors: HashMap<usize, (Rc<Node<'t>>, Extent)>,
}

impl<'t> Builder<'t> {
    fn take(&mut self, event: Event<'t>, at: At) -> Result<()> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    let message = "a second document begins here; a job file holds one job, so put it in a file of its own";
                    return Err(NotATree::new(at, message));
                }
                Ok(())
            }
            Event::Alias(anchor) => {
                let Some((node, extent)) = self.anchors.get(&anchor) else {
                    let message = "this alias stands for a value that contains it; write the value out";
                    return Err(NotATree::new(at, message));
                };
                let (content, extent) = (Content::Shared(Rc::clone(node)), *extent);
                self.admit(extent, at)?;
                self.complete(Node { at, content }, 0, extent)
            }
            Event::Scalar(text, style, anchor, tag) => {
                refuse_tag(tag.as_deref(), at)?;
                self.admit(SCALAR, at)?;
                let content = match style {
                    ScalarStyle::Plain => scalar::plain(text),
                    _ => Content::Text(text),
                };
                self.complete(Node { at, content }, anchor, SCALAR)
            }
            Event::SequenceStart(anchor, tag) => {
                self.begin(at, anchor, tag.as_deref(), Inside::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                let inside = Inside::Map { entries: Vec::new(), key: None, seen: HashMap::new() };
                self.begin(at, anchor, tag.as_deref(), inside)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(open) = self.open.pop() else { return Ok(()) };
                let content = match open.inside {
                    Inside::List(items) => Content::List(items),
                    Inside::Map { entries, .. } => Content::Map(entries),
                };
                self.complete(Node { at: open.at, content }, open.anchor, open.extent)
            }
        }
    }

    fn begin(&mut self, at: At, anchor: usize, tag: Option<&Tag>, inside: Inside<'t>) -> Result<()> {
        refuse_tag(tag, at)?;
        let extent = Extent { values: 1, levels: 1 };
        self.admit(extent, at)?;
        self.open.push(Unfinished { at, anchor, extent, inside });
        Ok(())
    }

    /// Checks the expanded size, because a small text with aliases can stand for a very large value.
    fn admit(&mut self, extent: Extent, at: At) -> Result<()> {
        if self.open.len() + extent.levels > limits::NESTING_DEPTH {
            return Err(NotATree::new(at, Beyond::Depth.to_string()));
        }
        self.values = self.values.saturating_add(extent.values);
        if self.values > limits::JOB_FILE_VALUES {
            return Err(NotATree::new(at, format!("{}, with aliases expanded", Beyond::Count)));
        }
        Ok(())
    }

    fn complete(&mut self, mut node: Node<'t>, anchor: usize, extent: Extent) -> Result<()> {
        if anchor > 0 {
            let at = node.at;
            let shared = Rc::new(node);
            self.anchors.insert(anchor, (Rc::clone(&shared), extent));
            node = Node { at, content: Content::Shared(shared) };
        }
        let Some(open) = self.open.last_mut() else {
            self.top = Some(node);
            return Ok(());
        };
        open.extent.values = open.extent.values.saturating_add(extent.values);
        open.extent.levels = open.extent.levels.max(extent.levels + 1);
        match &mut open.inside {
            Inside::List(items) => items.push(node),
            Inside::Map { entries, key, seen } => match key.take() {
                None => {
                    let name = key_of(&node)?;
                    if let Some(first) = seen.insert(name.clone(), node.at) {
                        let (name, At { line, column }) = (shown(&name), first);
                        let message = format!(
                            "the key `{name}` is given twice; it is already at line {line}, column {column}"
                        );
                        return Err(NotATree::new(node.at, message));
                    }
                    *key = Some((name, node.at));
                }
                Some((key, at)) => {
                    // An empty value has no position of its own.
                    if matches!(node.content, Content::Null) {
                        node.at = at;
                    }
                    entries.push(Entry { key, at, value: node });
                }
            },
        }
        Ok(())
    }
}

fn key_of<'t>(node: &Node<'t>) -> Result<Cow<'t, str>> {
    match node.content() {
        Content::Text(text) => Ok(text.clone()),
        Content::Boolean { written: Some(written), .. } | Content::Number { written: Some(written), .. } => {
            Ok(written.clone())
        }
        Content::Null => Err(NotATree::new(node.at, "a name is missing before `:`")),
        _ => Err(NotATree::new(
            node.at,
            "a key must be a string, not a list or a map; a string that begins with [ or { needs quotes",
        )),
    }
}

fn refuse_tag(tag: Option<&Tag>, at: At) -> Result<()> {
    let Some(tag) = tag else { return Ok(()) };
    let name = if tag.is_yaml_core_schema() { format!("!!{}", tag.suffix) } else { tag.to_string() };
    let name = shown(&name);
    let message =
        format!("the tag `{name}` is not supported; remove it (quotes turn a number into a string)");
    Err(NotATree::new(at, message))
}
