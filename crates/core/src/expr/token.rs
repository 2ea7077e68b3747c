//! Splits an expression into tokens, and refuses text that is not part of the language. It is narrower than Jinja's own
//! grammar on purpose: every accepted token means the same in both.

use crate::limits;
use crate::shown::shown;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'s> {
    Word(&'s str),
    /// A literal text; `None` when it contains escapes, and then it cannot be a name.
    Text(Option<&'s str>),
    /// A number; `Some` if it is whole and has no sign.
    Number(Option<u64>),
    Sign(&'s str),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'s> {
    pub(super) kind: Kind<'s>,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Token<'_> {
    pub(super) fn is(&self, sign: &str) -> bool {
        self.kind == Kind::Sign(sign)
    }
}

/// Words that cannot be names.
pub(super) const KEYWORDS: &[&str] =
    &["and", "or", "not", "in", "is", "if", "else", "true", "false", "none", "True", "False", "None"];

const SIGNS: &[&str] =
    &["==", "!=", "<=", ">=", "<", ">", "~", "|", "(", ")", "[", "]", "{", "}", ",", ":", "."];

pub(super) fn tokens(source: &str) -> Result<Vec<Token<'_>>, String> {
    let (bytes, most) = (source.len(), limits::EXPRESSION_BYTES);
    if bytes > most {
        return Err(format!("the expression has {bytes} bytes; at most {most} are allowed"));
    }
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(first) = source[at..].chars().next() {
        if first.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let (kind, length) = token(source, at, first, &tokens)?;
        match kind {
            Kind::Sign("(" | "[" | "{") => depth += 1,
            Kind::Sign(")" | "]" | "}") => depth = depth.saturating_sub(1),
            _ => {}
        }
        tokens.push(Token { kind, start: at, end: at + length });
        if depth > limits::EXPRESSION_DEPTH {
            return Err(format!("brackets are nested more than {} levels deep", limits::EXPRESSION_DEPTH));
        }
        if tokens.len() > limits::EXPRESSION_TOKENS {
            return Err(format!("the expression has more than {} parts", limits::EXPRESSION_TOKENS));
        }
        at += length;
    }
    if tokens.is_empty() {
        return Err("the expression is empty; write a name between the braces, such as params.x".to_owned());
    }
    Ok(tokens)
}

fn token<'s>(
    source: &'s str,
    at: usize,
    first: char,
    before: &[Token<'_>],
) -> Result<(Kind<'s>, usize), String> {
    let rest = &source[at..];
    match first {
        'A'..='Z' | 'a'..='z' | '_' => {
            let length = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
            Ok((Kind::Word(&rest[..length]), length))
        }
        '"' | '\'' => literal(rest, first),
        '0'..='9' => number(rest, before.last().is_some_and(|token| token.is("."))),
        // The sign of a number, because no operand precedes it.
        '-' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) && !ends_operand(before) => {
            let (_, length) = number(&rest[1..], false)?;
            Ok((Kind::Number(None), length + 1))
        }
        _ => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            Some(sign) => Ok((Kind::Sign(&rest[..sign.len()]), sign.len())),
            None => Err(refused(source, at, first, before)),
        },
    }
}

fn ends_operand(before: &[Token<'_>]) -> bool {
    match before.last().map(|token| token.kind) {
        None => false,
        Some(Kind::Word(word)) => !matches!(word, "and" | "or" | "not" | "in" | "is" | "if" | "else"),
        Some(Kind::Text(_) | Kind::Number(_)) => true,
        Some(Kind::Sign(sign)) => matches!(sign, ")" | "]" | "}"),
    }
}

fn literal(rest: &str, quote: char) -> Result<(Kind<'_>, usize), String> {
    let mut escaped = false;
    let mut plain = true;
    for (index, c) in rest.char_indices().skip(1) {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            (escaped, plain) = (true, false);
        } else if c == quote {
            return Ok((Kind::Text(plain.then(|| &rest[1..index])), index + 1));
        }
    }
    Err(format!("the quote {quote} is not closed"))
}

fn number(rest: &str, is_index: bool) -> Result<(Kind<'_>, usize), String> {
    let digits = |from: usize| rest[from..].bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(0);
    let mut end = whole;
    if !is_index {
        if rest[end..].starts_with('.') && digits(end + 1) > 0 {
            end += 1 + digits(end + 1);
        }
        if rest[end..].starts_with(['e', 'E']) {
            let sign = usize::from(rest[end + 1..].starts_with(['+', '-']));
            let exponent = digits(end + 1 + sign);
            end += if exponent > 0 { 1 + sign + exponent } else { 0 };
        }
    }
    if rest[end..].starts_with(|c: char| c.is_alphanumeric() || c == '_') {
        let shown =
            shown(rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default());
        return Err(format!("`{shown}` is neither a number nor a name"));
    }
    let value = if end == whole { rest[..whole].parse().ok() } else { None };
    Ok((Kind::Number(value), end))
}

fn refused(source: &str, at: usize, first: char, before: &[Token<'_>]) -> String {
    let dashed = (first == '-').then(|| dashed_name(source, at, before)).flatten();
    match (first, dashed) {
        (_, Some(name)) => {
            format!("`-` is not available in expressions; write a name with a dash in brackets: {name}")
        }
        ('+' | '-' | '*' | '/' | '%', None) => {
            format!("`{first}` is not available in expressions: they do not calculate; `~` joins strings")
        }
        ('=', None) => "`=` is not available in expressions; compare with `==`".to_owned(),
        _ => format!("`{}` is not available in expressions", shown(&first.to_string())),
    }
}

/// Suggests `steps["build-web"]` for `steps.build-web.outputs.x`, which is a subtraction in Jinja.
fn dashed_name(source: &str, at: usize, before: &[Token<'_>]) -> Option<String> {
    let [.., owner, dot, last] = before else { return None };
    let (Kind::Word(_), Kind::Word(_)) = (owner.kind, last.kind) else { return None };
    if !dot.is(".") || last.end != at {
        return None;
    }
    let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let rest = &source[last.start..];
    let name = &rest[..rest.find(|c: char| !in_name(c)).unwrap_or(rest.len())];
    // Start at the beginning of the chain of names.
    let mut first = before.len() - 3;
    while first >= 2 && before[first - 1].is(".") && matches!(before[first - 2].kind, Kind::Word(_)) {
        first -= 2;
    }
    let owner = &source[before[first].start..dot.start];
    Some(format!("{}[\"{}\"]", shown(owner), shown(name.trim_end_matches('-'))))
}
