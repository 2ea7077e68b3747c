//! Owns the patterns of params: regular expressions of bounded size that must match a whole text. Nodes declare them,
//! so they are not trusted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use regex::{Regex, RegexBuilder};

use crate::limits;

/// A valid, compiled pattern.
#[derive(Clone, Debug)]
pub struct Pattern(Arc<Regex>);

/// The reason why a pattern is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    #[error("it is {0} bytes long; at most {most} are possible", most = limits::PATTERN_BYTES)]
    TooLong(usize),
    #[error("it is too large once compiled; repeat less often")]
    TooLarge,
    #[error("{0}")]
    Wrong(String),
}

/// The cache of compiled patterns. A job of 10,000 tasks uses the same few; nodes may declare many.
static COMPILED: Mutex<Option<HashMap<String, Pattern>>> = Mutex::new(None);
const COMPILED_KEPT: usize = 256;

impl Pattern {
    pub fn new(pattern: &str) -> Result<Self, BadPattern> {
        let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        let compiled = compiled.get_or_insert_default();
        if let Some(known) = compiled.get(pattern) {
            return Ok(known.clone());
        }
        let new = compile(pattern)?;
        if compiled.len() >= COMPILED_KEPT {
            compiled.clear();
        }
        compiled.insert(pattern.to_owned(), new.clone());
        Ok(new)
    }

    /// Returns whether the whole text matches.
    pub fn matches(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

fn compile(pattern: &str) -> Result<Pattern, BadPattern> {
    if pattern.len() > limits::PATTERN_BYTES {
        return Err(BadPattern::TooLong(pattern.len()));
    }
    // Compiles the pattern alone first: `a)|(b` is invalid, but inside the parentheses below it would be valid and
    // match too much.
    build(pattern)?;
    build(&format!(r"\A(?:{pattern})\z")).map(|regex| Pattern(Arc::new(regex)))
}

fn build(pattern: &str) -> Result<Regex, BadPattern> {
    RegexBuilder::new(pattern)
        .size_limit(limits::PATTERN_COMPILED_BYTES)
        .dfa_size_limit(limits::PATTERN_COMPILED_BYTES)
        .nest_limit(50)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => BadPattern::TooLarge,
            other => BadPattern::Wrong(last_line(&other.to_string())),
        })
}

/// Returns the last line, which contains the reason: above it the crate prints the pattern with a mark.
fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_texts_only() {
        let pattern = Pattern::new("a|ab").unwrap();
        for (text, matches) in
            [("a", true), ("ab", true), ("abc", false), ("xa", false), ("a\n", false), ("", false)]
        {
            assert_eq!(pattern.matches(text), matches, "{text:?}");
        }
        let lines = Pattern::new("(?m)^a$").unwrap();
        assert!(!lines.matches("a\nb"));
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        for (pattern, why) in [
            ("a)|(b", "unopened group"),
            ("(", "unclosed group"),
            ("(?x)a # b", "unclosed group"),
            ("(?:(?:a{100}){100}){1000}", "it is too large once compiled; repeat less often"),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap_err().to_string(), why, "{pattern}");
        }
        assert_eq!(
            Pattern::new(&"a".repeat(limits::PATTERN_BYTES + 1)).unwrap_err().to_string(),
            "it is 1025 bytes long; at most 1024 are possible"
        );
        assert!(Pattern::new(&"(".repeat(1000)).is_err());
    }
}
