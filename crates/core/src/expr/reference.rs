//! Finds the names that an expression's text uses, and refuses text that is not part of the language. Nothing is
//! evaluated: a name counts, whichever branch it is in.

use std::fmt;

use super::filters::{CONCAT, FILTERS};
use super::token::{KEYWORDS, Kind, Token, tokens};
use crate::nearest::advice;
use crate::shown::shown;
use crate::words::words;

pub(super) const NODE_FACTS: &[&str] =
    &["id", "hostname", "groups", "labels", "capabilities", "slots", "version"];
pub(super) const RUN_FACTS: &[&str] = &["id", "job", "scheduled_at"];
/// Which of them exist depends on the trigger.
pub(super) const TRIGGER_FACTS: &[&str] = &["path", "event", "delivery", "job", "run", "status", "node"];
pub(super) const EVENT_FACTS: &[&str] =
    &["name", "status", "error", "cluster", "created_at", "started_at", "finished_at"];

/// One part of a path into a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Name(String),
    Index(u64),
    /// Known only at evaluation.
    Computed,
}

/// A name as it is used: `steps.build.outputs.version`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) root: Root,
    /// The path after the root, as far as it is written literally.
    pub(super) path: Vec<Part>,
    pub(crate) written: String,
}

words! {
    /// The valid first words of names. `item` is the item of `for_each`, and `index` its index; `event` is what a message
    /// is about.
    pub(crate) enum Root {
        Params = "params",
        Steps = "steps",
        Node = "node",
        Run = "run",
        Item = "item",
        Index = "index",
        /// The body of the request that starts the job: only in params of triggers, like the next one.
        Payload = "payload",
        Trigger = "trigger",
        Event = "event",
    }
}

impl Root {
    /// Returns whether the value is known only when the step is due.
    pub(super) fn is_late(self) -> bool {
        matches!(self, Root::Steps | Root::Item | Root::Index)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.written))
    }
}

impl Reference {
    /// Returns the name of the step, the param or the fact.
    pub(crate) fn name(&self) -> &str {
        self.named(0).expect("a reference without a name is refused when it is read")
    }

    pub(crate) fn named(&self, index: usize) -> Option<&str> {
        match self.path.get(index) {
            Some(Part::Name(name)) => Some(name),
            _ => None,
        }
    }

    /// For a step: returns whether its outputs are read by node name.
    pub(crate) fn is_of_nodes(&self) -> bool {
        self.root == Root::Steps && self.named(1) == Some("nodes")
    }

    /// For a step: returns the node, if it is written literally.
    pub(super) fn node(&self) -> Option<&str> {
        if self.is_of_nodes() { self.named(2) } else { None }
    }

    /// For a step: returns the output, if it is written literally.
    pub(crate) fn output(&self) -> Option<&str> {
        self.named(if self.is_of_nodes() { 4 } else { 2 })
    }

    fn check(&self) -> Result<(), String> {
        let named = self.named(0);
        match self.root {
            Root::Params if named.is_none() => {
                Err("the name of the param is missing; write params.NAME".to_owned())
            }
            Root::Node => one_of("node", self.named(0), NODE_FACTS),
            Root::Run => one_of("run", self.named(0), RUN_FACTS),
            Root::Trigger => one_of("trigger", self.named(0), TRIGGER_FACTS),
            Root::Event => one_of("event", self.named(0), EVENT_FACTS),
            Root::Index if !self.path.is_empty() => Err("`index` is a number, and has no parts".to_owned()),
            Root::Params | Root::Item | Root::Index | Root::Payload => Ok(()),
            Root::Steps => {
                let Some(step) = named else {
                    return Err("the name of the step is missing; write steps.NAME.outputs.OUTPUT".to_owned());
                };
                let step = in_path(step);
                match self.named(1) {
                    Some("outputs") => Ok(()),
                    Some("nodes") if self.path.len() >= 4 && self.named(3) == Some("outputs") => Ok(()),
                    Some("nodes") => Err(format!(
                        "the node or the output is missing; write steps{step}.nodes[\"HOSTNAME\"].outputs.OUTPUT"
                    )),
                    _ => Err(format!(
                        "a step has `outputs` and `nodes`; write steps{step}.outputs.OUTPUT, or \
                         steps{step}.nodes[\"HOSTNAME\"].outputs.OUTPUT"
                    )),
                }
            }
        }
    }
}

/// Formats a name as it is written after its owner: `.build`, `["build-web"]`.
pub(crate) fn in_path(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.chars().all(plain) && !name.starts_with(|c: char| c.is_ascii_digit()) {
        format!(".{name}")
    } else {
        format!("[\"{}\"]", shown(name))
    }
}

fn one_of(root: &str, name: Option<&str>, valid: &[&str]) -> Result<(), String> {
    match name {
        Some(name) if valid.contains(&name) => Ok(()),
        Some(name) => Err(format!("`{root}` has no `{}`; {}", shown(name), advice(name, valid, "it has"))),
        None => {
            Err(format!("`{root}` is not a value; write {root}.{}; it has: {}", valid[0], valid.join(", ")))
        }
    }
}

/// The names that an expression uses, and the rewritten text that is evaluated.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) references: Vec<Reference>,
    pub(super) source: String,
}

pub(super) fn read(source: &str) -> Result<Read, String> {
    let tokens = tokens(source)?;
    let mut references = Vec::new();
    refuse_strides(&tokens)?;
    for (index, token) in tokens.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| &tokens[before]);
        match token.kind {
            Kind::Word("is") if before.is_none_or(|before| !before.is(".")) => {
                return Err("`is` is not available in expressions; compare with `==` or `in`".to_owned());
            }
            Kind::Word(name) if before.is_some_and(|before| before.is("|")) => {
                filter(name, &tokens[index + 1..])?;
            }
            Kind::Word(word) if before.is_some_and(|before| before.is(".")) || KEYWORDS.contains(&word) => {}
            Kind::Word(word) => references.push(reference(source, &tokens, index, word)?),
            Kind::Sign("(") if is_call(&tokens[..index]) => {
                return Err("calls are not available in expressions; there are filters: x | upper".to_owned());
            }
            Kind::Text(_) | Kind::Number(_) | Kind::Sign(_) => {}
        }
    }
    Ok(Read { references, source: rewritten(source, &tokens) })
}

/// Refuses `x[1:9:2]`: it has no use here, and Jinja computes negative positions when it goes backwards.
fn refuse_strides(tokens: &[Token<'_>]) -> Result<(), String> {
    let mut open = Vec::new();
    for token in tokens {
        match token.kind {
            Kind::Sign(bracket @ ("(" | "[" | "{")) => open.push((bracket, 0)),
            Kind::Sign(")" | "]" | "}") => {
                open.pop();
            }
            Kind::Sign(":") => {
                if let Some(("[", colons)) = open.last_mut() {
                    *colons += 1;
                    if *colons > 1 {
                        return Err("a part of a list has a beginning and an end: x[1:3]".to_owned());
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn filter(name: &str, after: &[Token<'_>]) -> Result<(), String> {
    if !FILTERS.contains(&name) {
        return Err(format!("there is no filter `{}`; {}", shown(name), advice(name, FILTERS, "filters")));
    }
    if after.first().is_some_and(|next| next.is(".") || next.is("[")) {
        return Err(format!(
            "the result of `{name}` needs parentheses before a part of it is selected: (x | {name}).y"
        ));
    }
    Ok(())
}

/// Returns whether the bracket that opens here contains the arguments of a call, and not of a filter.
fn is_call(before: &[Token<'_>]) -> bool {
    match before {
        [.., pipe, Token { kind: Kind::Word(_), .. }] if pipe.is("|") => false,
        [.., dot, Token { kind: Kind::Word(_), .. }] if dot.is(".") => true,
        [.., Token { kind: Kind::Word(word), .. }] => !KEYWORDS.contains(word),
        [.., Token { kind: Kind::Text(_) | Kind::Number(_), .. }] => true,
        [.., last] => last.is(")") || last.is("]") || last.is("}"),
        [] => false,
    }
}

fn reference(source: &str, tokens: &[Token<'_>], first: usize, word: &str) -> Result<Reference, String> {
    let root = Root::parse(word).ok_or_else(|| {
        let roots = Root::ALL.map(Root::as_str);
        format!("there is no `{}`; {}", shown(word), advice(word, &roots, "names begin with"))
    })?;
    let mut path = Vec::new();
    let mut next = first + 1;
    loop {
        match &tokens[next..] {
            [dot, Token { kind: Kind::Word(name), .. }, ..] if dot.is(".") => {
                path.push(Part::Name((*name).to_owned()));
                next += 2;
            }
            [dot, Token { kind: Kind::Number(Some(index)), .. }, ..] if dot.is(".") => {
                path.push(Part::Index(*index));
                next += 2;
            }
            [open, ..] if open.is("[") => {
                let Some(length) = closing(&tokens[next..]) else { break };
                path.push(match &tokens[next + 1..next + length] {
                    [Token { kind: Kind::Text(Some(name)), .. }] => Part::Name((*name).to_owned()),
                    [Token { kind: Kind::Number(Some(index)), .. }] => Part::Index(*index),
                    _ => Part::Computed,
                });
                next += length + 1;
            }
            _ => break,
        }
    }
    let written = source[tokens[first].start..tokens[next - 1].end].to_owned();
    let reference = Reference { root, path, written };
    reference.check()?;
    Ok(reference)
}

/// Returns the distance from an opening bracket to its closing bracket.
fn closing(tokens: &[Token<'_>]) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Sign("(" | "[" | "{") => depth += 1,
            Kind::Sign(")" | "]" | "}") => {
                depth -= 1;
                if depth == 0 {
                    return Some(index);
                }
            }
            _ => {}
        }
    }
    None
}

/// Rewrites `a ~ b` to `([a, b] | concat)`: Jinja's own `~` has no bound, and prints `True` and `None`.
fn rewritten(source: &str, tokens: &[Token<'_>]) -> String {
    let mut out = String::with_capacity(source.len() + 16);
    // For each level of brackets: the start of the current operand, and whether it was joined to another.
    let mut levels = vec![(0, false)];
    for token in tokens {
        let written = &source[token.start..token.end];
        match token.kind {
            Kind::Sign("~") => {
                if let Some(level) = levels.last_mut() {
                    level.1 = true;
                }
                out.push(',');
            }
            Kind::Sign("(" | "[" | "{") => {
                out.push_str(written);
                levels.push((out.len(), false));
            }
            Kind::Sign(")" | "]" | "}") => {
                end_operand(&mut out, levels.pop());
                out.push_str(written);
                if levels.is_empty() {
                    levels.push((out.len(), false));
                }
            }
            Kind::Sign("==" | "!=" | "<=" | ">=" | "<" | ">" | "," | ":")
            | Kind::Word("and" | "or" | "not" | "in" | "if" | "else")
                if !out.ends_with('.') =>
            {
                end_operand(&mut out, levels.pop());
                out.push(' ');
                out.push_str(written);
                out.push(' ');
                levels.push((out.len(), false));
            }
            _ => {
                if matches!(token.kind, Kind::Word(_) | Kind::Text(_) | Kind::Number(_))
                    && !out.ends_with('.')
                {
                    out.push(' ');
                }
                out.push_str(written);
            }
        }
    }
    end_operand(&mut out, levels.pop());
    out
}

fn end_operand(out: &mut String, level: Option<(usize, bool)>) {
    if let Some((begin, true)) = level {
        out.insert_str(begin, " ([");
        out.push_str(&format!("]|{CONCAT})"));
    }
}
