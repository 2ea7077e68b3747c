//! Owns templates: strings with `{param}` in them, one per argument or variable. A value is inserted and never parsed
//! again; an absent optional param removes its whole element.

use downbeat_core::backend::{Params, text_of};
use serde_json::Value;

/// One element of an argv, or the value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Param(String),
}

impl Template {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.contains("{{") || text.contains("}}") {
            return Err(format!("`{text}`: braces must not be doubled; write {{name}} for a param"));
        }
        if text.contains('\0') {
            return Err("contains a NUL character, which arguments cannot contain; remove it".to_owned());
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(open);
            let close =
                from.find('}').filter(|close| from.starts_with('{') && *close > 1).ok_or_else(|| {
                    format!("`{text}`: unpaired brace, or no name between braces; write {{name}}")
                })?;
            if !before.is_empty() {
                parts.push(Part::Literal(before.to_owned()));
            }
            parts.push(Part::Param(from[1..close].to_owned()));
            rest = &from[close + 1..];
        }
        if !rest.is_empty() {
            parts.push(Part::Literal(rest.to_owned()));
        }
        Ok(Self { parts })
    }

    pub(super) fn params(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Param(name) => Some(name.as_str()),
            Part::Literal(_) => None,
        })
    }

    /// Returns the text if the template has no params.
    pub(super) fn literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [Part::Literal(text)] => Some(text),
            _ => None,
        }
    }

    pub(super) fn literal_bytes(&self) -> usize {
        self.parts.iter().map(|part| if let Part::Literal(text) = part { text.len() } else { 0 }).sum()
    }

    /// Returns the param if the template is nothing else.
    pub(super) fn whole(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [Part::Param(name)] => Some(name),
            _ => None,
        }
    }

    /// Returns the param that the template starts with.
    pub(super) fn first(&self) -> Option<&str> {
        match self.parts.first() {
            Some(Part::Param(name)) => Some(name),
            _ => None,
        }
    }

    /// Returns the filled template: one string, many for a list, none if a param is absent.
    pub(super) fn fill(&self, params: &Params) -> Vec<String> {
        if let Some(Value::Array(items)) = self.whole().and_then(|name| params.get(name)) {
            return items.iter().filter_map(text_of).collect();
        }
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => filled.push_str(text),
                Part::Param(name) => match params.get(name).and_then(text_of) {
                    Some(text) => filled.push_str(&text),
                    None => return Vec::new(),
                },
            }
        }
        vec![filled]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_fill_their_places_and_are_not_read_again() {
        let params: Params = [
            ("a", json!("{b} $(x)")),
            ("b", json!(5)),
            ("list", json!(["x y", "", "{a}"])),
            ("none", json!([])),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        for (template, filled) in [
            ("plain", vec!["plain"]),
            ("", vec![""]),
            ("{a}", vec!["{b} $(x)"]),
            ("--x={a}-{b}", vec!["--x={b} $(x)-5"]),
            ("{list}", vec!["x y", "", "{a}"]),
            ("{none}", vec![]),
            ("{absent}", vec![]),
            ("--x={absent}", vec![]),
        ] {
            assert_eq!(Template::parse(template).unwrap().fill(&params), filled, "{template}");
        }
    }

    #[test]
    fn braces_have_one_meaning() {
        for wrong in ["{{ x }}", "{", "}", "{}", "a{b", "a}b", "{a}}", "}{"] {
            assert!(Template::parse(wrong).is_err(), "{wrong}");
        }
    }
}
