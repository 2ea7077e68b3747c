//! The entry points of the parser: a job file's bytes, its text, or parsed JSON.

use serde::de::IgnoredAny;
use serde_json::Value;

use super::job;
use super::tree::{Beyond, Node};
use super::yaml::{self, Cause, NotATree};
use crate::backend::Catalogue;
use crate::limits;
use crate::spec::{At, Definition, Noted, Problem};

/// Reads a job file, YAML or JSON. An `origin` that ends in `.json` must be JSON.
pub fn parse(text: &str, origin: &str, catalogue: &Catalogue) -> Result<Definition, Vec<Problem>> {
    parse_noting(text, origin, catalogue).map(|noted| noted.definition)
}

/// As `parse`, with notes about text that is valid but probably not intended.
pub fn parse_noting(text: &str, origin: &str, catalogue: &Catalogue) -> Result<Noted, Vec<Problem>> {
    let empty = "the file is empty; a job needs at least a list of `tasks`";
    with_tree(text, origin, empty, |tree| job::check(tree, catalogue))
}

/// Reads the tree of a file, YAML or JSON, and passes it on. `empty` is the problem of a file without a value.
pub(super) fn with_tree<T>(
    text: &str,
    origin: &str,
    empty: &str,
    read: impl FnOnce(&Node<'_>) -> Result<T, Vec<Problem>>,
) -> Result<T, Vec<Problem>> {
    if text.len() > limits::JOB_FILE_BYTES {
        let (bytes, most) = (text.len(), limits::JOB_FILE_BYTES);
        return Err(whole(format!(
            "the file has {bytes} bytes; a job file may have at most {most}; split the job"
        )));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(index) = text.find('\0') {
        return Err(problem(NotATree::new(at_byte(text, index), "a NUL character; is this a text file?")));
    }
    let named_json =
        origin.rsplit_once('.').is_some_and(|(_, extension)| extension.eq_ignore_ascii_case("json"));
    if named_json && let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        let at = At::of_json(&error);
        let message = error.to_string();
        let what = message.split(" at line ").next().unwrap_or_default();
        return Err(problem(NotATree::new(at, format!("not valid JSON: {what}"))));
    }
    match yaml::tree(text) {
        Ok(Some(tree)) => read(&tree),
        Ok(None) => Err(whole(empty.to_owned())),
        // YAML 1.2 contains all of JSON except a few escapes; files with those are read as JSON, without positions.
        Err(error) if error.cause == Cause::Syntax && text.trim_start().starts_with('{') => {
            match serde_json::from_str::<Value>(text) {
                Ok(value) => Node::of_json(&value).map_err(beyond).and_then(|tree| read(&tree)),
                Err(_) => Err(problem(error)),
            }
        }
        Err(error) => Err(problem(error)),
    }
}

/// Reads a job file that may not even be UTF-8 text.
pub fn parse_bytes(bytes: &[u8], origin: &str, catalogue: &Catalogue) -> Result<Definition, Vec<Problem>> {
    parse_bytes_noting(bytes, origin, catalogue).map(|noted| noted.definition)
}

/// As `parse_bytes`, with notes about text that is valid but probably not intended.
pub fn parse_bytes_noting(bytes: &[u8], origin: &str, catalogue: &Catalogue) -> Result<Noted, Vec<Problem>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse_noting(text, origin, catalogue),
        Err(error) => {
            let valid = std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
            let error =
                NotATree::new(at_byte(valid, valid.len()), "not UTF-8 from here on; is this a text file?");
            Err(problem(error))
        }
    }
}

/// Reads a definition from JSON. Problems have a path but no position.
pub fn from_json(value: &Value, catalogue: &Catalogue) -> Result<Definition, Vec<Problem>> {
    from_json_noting(value, catalogue).map(|noted| noted.definition)
}

/// As `from_json`, with notes about text that is valid but probably not intended.
pub fn from_json_noting(value: &Value, catalogue: &Catalogue) -> Result<Noted, Vec<Problem>> {
    Node::of_json(value).map_err(beyond).and_then(|tree| job::check(&tree, catalogue))
}

pub(super) fn beyond(beyond: Beyond) -> Vec<Problem> {
    vec![Problem { path: String::new(), at: None, message: beyond.to_string() }]
}

fn whole(message: String) -> Vec<Problem> {
    vec![Problem { path: String::new(), at: Some(At { line: 1, column: 1 }), message }]
}

fn problem(error: NotATree) -> Vec<Problem> {
    vec![Problem { path: String::new(), at: Some(error.at), message: error.message }]
}

/// Returns the position of a byte, for text that was not parsed.
fn at_byte(text: &str, index: usize) -> At {
    let before = &text[..index];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let number = |value: usize| u32::try_from(value + 1).unwrap_or(u32::MAX);
    At { line: number(before.matches('\n').count()), column: number(before[line_start..].chars().count()) }
}
