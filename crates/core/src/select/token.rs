//! Splits a selector's text into words, operators and brackets, each with its column.

/// An error in the text of a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column} of the selector: {message}")]
pub struct Error {
    /// Counted in characters, from 1.
    pub column: u32,
    /// Includes the valid forms.
    pub message: String,
}

impl Error {
    pub(super) fn new(column: u32, message: impl Into<String>) -> Self {
        Self { column, message: message.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Bare, as in `group:web`, or the part of it before a quoted value.
    Word(String),
    /// Between quotes: never a keyword.
    Quoted(String),
    Operator(Operator),
    Open,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Like,
}

impl Operator {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Operator::Equal => "=",
            Operator::Unequal => "!=",
            Operator::Less => "<",
            Operator::LessOrEqual => "<=",
            Operator::Greater => ">",
            Operator::GreaterOrEqual => ">=",
            Operator::Like => "~",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    /// Counted in characters, from 1.
    pub(super) column: u32,
    /// Whether there is no blank between this token and the one before it.
    pub(super) joined: bool,
}

pub(super) fn tokens(text: &str) -> Result<Vec<Token>, Error> {
    let mut found = Vec::new();
    let mut characters = text.chars().zip(1_u32..).peekable();
    let mut joined = false;
    while let Some((c, column)) = characters.next() {
        let next = characters.peek().map(|(next, _)| *next);
        let kind = match c {
            ' ' | '\t' | '\n' | '\r' => {
                joined = false;
                continue;
            }
            '(' => Kind::Open,
            ')' => Kind::Close,
            '=' if next == Some('=') => return Err(Error::new(column, "write a single `=`")),
            '=' => Kind::Operator(Operator::Equal),
            '~' => Kind::Operator(Operator::Like),
            '!' | '<' | '>' if next == Some('=') => {
                characters.next();
                Kind::Operator(match c {
                    '!' => Operator::Unequal,
                    '<' => Operator::LessOrEqual,
                    _ => Operator::GreaterOrEqual,
                })
            }
            '<' => Kind::Operator(Operator::Less),
            '>' => Kind::Operator(Operator::Greater),
            '!' => {
                return Err(Error::new(column, "write `not` to negate a condition, or `!=` to compare"));
            }
            '&' => return Err(Error::new(column, "write `and` between two conditions")),
            '|' => return Err(Error::new(column, "write `or` between two conditions")),
            ',' => return Err(Error::new(column, "write `or` between alternatives: `node:a or node:b`")),
            '\'' | '"' => {
                let mut quoted = String::new();
                loop {
                    match characters.next() {
                        Some((end, _)) if end == c => break,
                        Some((inside, _)) => quoted.push(inside),
                        None => return Err(Error::new(column, format!("the quote {c} is not closed"))),
                    }
                }
                Kind::Quoted(quoted)
            }
            c if c.is_control() => {
                return Err(Error::new(column, format!("the character {c:?} cannot be part of a selector")));
            }
            first => {
                let mut word = String::from(first);
                while let Some((c, _)) = characters.next_if(|(c, _)| belongs_to_word(*c)) {
                    word.push(c);
                }
                Kind::Word(word)
            }
        };
        found.push(Token { kind, column, joined });
        joined = true;
    }
    Ok(found)
}

fn belongs_to_word(c: char) -> bool {
    !c.is_whitespace()
        && !c.is_control()
        && !matches!(c, '(' | ')' | '=' | '!' | '<' | '>' | '~' | '\'' | '"' | ',' | '&' | '|')
}
