//! Parses the text of a selector into a rule. `not` binds tighter than `and`, `and` tighter than `or`.

use super::glob::Glob;
use super::rule::{Literal, Rule, Test};
use super::token::{Error, Kind, Operator, Token, tokens};
use crate::limits;
use crate::nearest::nearest;
use crate::shown::shown;

const FORMS: &str = "all, group:NAME, node:NAME, backend:NAME, name ~ PATTERN, label.KEY, label.KEY = VALUE, \
                     capability.KEY >= NUMBER; joined by and, or, not and brackets";

pub(super) fn parse(text: &str) -> Result<Rule, Error> {
    if text.len() > limits::SELECTOR_BYTES {
        let (bytes, most) = (text.len(), limits::SELECTOR_BYTES);
        let message = format!(
            "the selector has {bytes} bytes, at most {most} are allowed; give the nodes a group or a label"
        );
        return Err(Error::new(1, message));
    }
    let tokens = tokens(text)?;
    if tokens.is_empty() {
        return Err(Error::new(1, format!("the selector is empty; valid are: {FORMS}")));
    }
    let end = u32::try_from(text.chars().count()).unwrap_or(u32::MAX).saturating_add(1);
    let mut reader = Reader { tokens: &tokens, next: 0, end, depth: 0 };
    let rule = reader.any()?;
    match reader.tokens.get(reader.next) {
        None => Ok(rule),
        Some(Token { kind: Kind::Close, column, .. }) => {
            Err(Error::new(*column, "this `)` has no `(` before it; remove it"))
        }
        Some(token) => Err(Error::new(token.column, "`and` or `or` is missing before this")),
    }
}

struct Reader<'t> {
    tokens: &'t [Token],
    next: usize,
    /// The column after the last character.
    end: u32,
    depth: usize,
}

impl<'t> Reader<'t> {
    fn peek(&self) -> Option<&'t Token> {
        self.tokens.get(self.next)
    }

    fn column(&self) -> u32 {
        self.peek().map_or(self.end, |token| token.column)
    }

    fn take_keyword(&mut self, keyword: &str) -> bool {
        let found = matches!(self.peek(), Some(Token { kind: Kind::Word(word), .. }) if word.eq_ignore_ascii_case(keyword));
        if found {
            self.next += 1;
        }
        found
    }

    fn any(&mut self) -> Result<Rule, Error> {
        let mut rules = vec![self.every()?];
        while self.take_keyword("or") {
            rules.push(self.every()?);
        }
        Ok(if rules.len() == 1 { rules.remove(0) } else { Rule::Or(rules) })
    }

    fn every(&mut self) -> Result<Rule, Error> {
        let mut rules = vec![self.one()?];
        while self.take_keyword("and") {
            rules.push(self.one()?);
        }
        Ok(if rules.len() == 1 { rules.remove(0) } else { Rule::And(rules) })
    }

    fn one(&mut self) -> Result<Rule, Error> {
        if self.depth >= limits::NESTING_DEPTH {
            let most = limits::NESTING_DEPTH;
            let message = format!("brackets and `not` are nested more than {most} levels deep");
            return Err(Error::new(self.column(), message));
        }
        if self.take_keyword("not") {
            self.depth += 1;
            let rule = self.one()?;
            self.depth -= 1;
            return Ok(Rule::Not(Box::new(rule)));
        }
        let Some(token) = self.peek() else {
            let message = format!("an expression is missing at the end; valid are: {FORMS}");
            return Err(Error::new(self.end, message));
        };
        self.next += 1;
        let message = match &token.kind {
            Kind::Open => {
                self.depth += 1;
                let rule = self.any()?;
                self.depth -= 1;
                return match self.peek() {
                    Some(Token { kind: Kind::Close, .. }) => {
                        self.next += 1;
                        Ok(rule)
                    }
                    Some(other) => Err(Error::new(other.column, "`and`, `or` or `)` is missing before this")),
                    None => Err(Error::new(token.column, "this `(` is not closed; add a `)`")),
                };
            }
            Kind::Word(word) => return self.condition(word, token.column),
            Kind::Quoted(text) => stray(text),
            Kind::Close => format!("an expression is missing before `)`; valid are: {FORMS}"),
            Kind::Operator(operator) => {
                format!(
                    "an operand is missing before `{}`: name, label.KEY or capability.KEY",
                    operator.as_str()
                )
            }
        };
        Err(Error::new(token.column, message))
    }

    fn condition(&mut self, word: &str, column: u32) -> Result<Rule, Error> {
        match word {
            "all" => return Ok(Rule::All),
            "name" => {
                let missing = "write `name ~ web-*` or `name = web-01`";
                let test = self.test()?;
                return test.map(Rule::Name).ok_or_else(|| Error::new(self.column(), missing));
            }
            _ if word.eq_ignore_ascii_case("and") || word.eq_ignore_ascii_case("or") => {
                let message = format!("an expression is missing before `{word}`; valid are: {FORMS}");
                return Err(Error::new(column, message));
            }
            _ => {}
        }
        if let Some(key) = word.strip_prefix("label.") {
            let key = key_of(key, column, "label")?;
            return Ok(Rule::Label { key, test: self.test()? });
        }
        if let Some(key) = word.strip_prefix("capability.") {
            let key = key_of(key, column, "capability")?;
            return Ok(Rule::Capability { key, test: self.test()? });
        }
        let Some((scope, value)) = word.split_once(':') else {
            let message = self.compared(word).unwrap_or_else(|| stray(word));
            return Err(Error::new(column, message));
        };
        let value = self.scope_value(scope, value, column)?;
        let (scope_shown, value_shown) = (shown(scope), shown(&value));
        let message = match scope {
            "group" => return Ok(Rule::Group(Glob::new(&value))),
            "node" => return Ok(Rule::Node { hostname: Glob::new(&value), id: value.parse().ok() }),
            "backend" => return Ok(Rule::Backend(value)),
            "label" | "capability" => {
                format!("write `{scope}.{value_shown}`, with a dot, to select by {scope}")
            }
            _ => match nearest(scope, ["group", "node", "backend"]) {
                Some(meant) => format!("`{scope_shown}:` is unknown; did you mean `{meant}:{value_shown}`?"),
                None => {
                    format!(
                        "`{scope_shown}:` is unknown; did you mean `label.{scope_shown} = {value_shown}`?"
                    )
                }
            },
        };
        Err(Error::new(column, message))
    }

    /// Returns a suggestion for a bare word that is compared with a value: `zone=b` means a label.
    fn compared(&self, word: &str) -> Option<String> {
        let Some(Token { kind: Kind::Operator(operator), .. }) = self.peek() else { return None };
        let value = match self.tokens.get(self.next + 1).map(|token| &token.kind) {
            Some(Kind::Word(text)) => shown(text),
            Some(Kind::Quoted(text)) => format!("'{}'", shown(text)),
            _ => "VALUE".to_owned(),
        };
        let (sign, word_shown) = (operator.as_str(), shown(word));
        let meant = match word.to_ascii_lowercase().as_str() {
            scope @ ("group" | "node" | "backend") => format!("{scope}:{value}"),
            "groups" => format!("group:{value}"),
            "host" | "hostname" | "nodes" => format!("name {sign} {value}"),
            _ if nearest(word, ["name"]).is_some() => format!("name {sign} {value}"),
            _ => match operator {
                Operator::Equal | Operator::Unequal | Operator::Like => {
                    format!("label.{word_shown} {sign} {value}")
                }
                Operator::Less | Operator::LessOrEqual | Operator::Greater | Operator::GreaterOrEqual => {
                    format!("capability.{word_shown} {sign} {value}")
                }
            },
        };
        Some(format!("`{word_shown}` alone is not a selector; did you mean `{meant}`?"))
    }

    /// Reads the value after `group:`, bare or in quotes.
    fn scope_value(&mut self, scope: &str, bare: &str, column: u32) -> Result<String, Error> {
        if !bare.is_empty() {
            return Ok(bare.to_owned());
        }
        if let Some(Token { kind: Kind::Quoted(text), joined: true, .. }) = self.peek()
            && !text.is_empty()
        {
            self.next += 1;
            return Ok(text.clone());
        }
        let scope = shown(scope);
        let message = format!("a name is missing after `{scope}:`; write `{scope}:NAME` without a space");
        Err(Error::new(column, message))
    }

    fn test(&mut self) -> Result<Option<Test>, Error> {
        let Some(Token { kind: Kind::Operator(operator), .. }) = self.peek() else {
            return Ok(None);
        };
        self.next += 1;
        let column = self.column();
        let text = match self.peek().map(|token| &token.kind) {
            Some(Kind::Word(text) | Kind::Quoted(text)) => text.clone(),
            _ => return Err(Error::new(column, format!("a value is missing after `{}`", operator.as_str()))),
        };
        self.next += 1;
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        Ok(Some(match operator {
            Operator::Equal => Test::Equal(Literal { text, number }),
            Operator::Unequal => Test::Unequal(Literal { text, number }),
            Operator::Like => Test::Like(Glob::new(&text)),
            Operator::Less | Operator::LessOrEqual | Operator::Greater | Operator::GreaterOrEqual => {
                let number = number.ok_or_else(|| {
                    let (sign, text) = (operator.as_str(), shown(&text));
                    Error::new(column, format!("`{sign}` compares numbers, but `{text}` is not a number"))
                })?;
                Test::Number(*operator, number)
            }
        }))
    }
}

fn key_of(key: &str, column: u32, what: &str) -> Result<String, Error> {
    if key.is_empty() {
        return Err(Error::new(column, format!("a key is missing: write `{what}.KEY`")));
    }
    Ok(key.to_owned())
}

fn stray(word: &str) -> String {
    match word {
        "group" | "node" | "backend" => return format!("a name is missing: write `{word}:NAME`"),
        "label" | "capability" => return format!("a key is missing: write `{word}.KEY`"),
        _ => {}
    }
    let shown = shown(word);
    match nearest(word, ["all", "name"]) {
        Some(meant) => format!("`{shown}` is not a selector; did you mean `{meant}`?"),
        None => format!("`{shown}` alone is not a selector; did you mean `group:{shown}` or `node:{shown}`?"),
    }
}
