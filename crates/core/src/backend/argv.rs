//! Splits a command line into an argv: blanks separate words, quotes and backslashes join them. Nothing is expanded:
//! variables, globs, pipes and redirections need a shell. An expression stays part of its word, whatever its value is:
//! it never becomes two arguments.

use crate::parts::Part;

/// The reason why a text cannot be split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unsplittable {
    #[error("the quote {0} is not closed")]
    OpenQuote(char),
    #[error("a backslash at the end escapes nothing")]
    TrailingBackslash,
}

/// Splits a text without expressions.
pub(super) fn split(line: &str) -> Result<Vec<String>, Unsplittable> {
    split_items(line.chars().map(Item::Character))
}

/// Splits a text with expressions.
pub(super) fn split_around(parts: &[Part<'_>]) -> Result<Vec<String>, Unsplittable> {
    split_items(parts.iter().flat_map(|part| {
        let (plain, expression) = match part {
            Part::Plain(text) => (*text, None),
            Part::Expression(source) => ("", Some(Item::Expression(source))),
        };
        plain.chars().map(Item::Character).chain(expression)
    }))
}

#[derive(Clone, Copy)]
enum Item<'t> {
    Character(char),
    Expression(&'t str),
}

fn split_items<'t>(mut items: impl Iterator<Item = Item<'t>>) -> Result<Vec<String>, Unsplittable> {
    use Item::Character;
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    while let Some(item) = items.next() {
        match item {
            Character(' ' | '\t' | '\n' | '\r') => words.extend(word.take()),
            Character('\\') => {
                let escaped = items.next().ok_or(Unsplittable::TrailingBackslash)?;
                push(word.get_or_insert_default(), escaped);
            }
            Character(quote @ '\'') => {
                let word = word.get_or_insert_default();
                loop {
                    match items.next().ok_or(Unsplittable::OpenQuote(quote))? {
                        Character('\'') => break,
                        inside => push(word, inside),
                    }
                }
            }
            Character(quote @ '"') => {
                let word = word.get_or_insert_default();
                loop {
                    match items.next().ok_or(Unsplittable::OpenQuote(quote))? {
                        Character('"') => break,
                        Character('\\') => match items.next().ok_or(Unsplittable::OpenQuote(quote))? {
                            Character(escaped @ ('"' | '\\' | '$' | '`')) => word.push(escaped),
                            other => {
                                word.push('\\');
                                push(word, other);
                            }
                        },
                        inside => push(word, inside),
                    }
                }
            }
            other => push(word.get_or_insert_default(), other),
        }
    }
    words.extend(word);
    Ok(words)
}

fn push(word: &mut String, item: Item<'_>) {
    match item {
        Item::Character(c) => word.push(c),
        Item::Expression(source) => {
            word.push_str("{{");
            word.push_str(source);
            word.push_str("}}");
        }
    }
}

/// Returns the first sign in a command line that has a meaning only in a shell: a pipe, a redirection, `;`, `&&`, a
/// glob, a variable. Ignores quoted signs, expressions, and the script of a shell that the line calls.
pub fn shell_sign(line: &str) -> Option<&'static str> {
    const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "ash"];
    let program = line.split_whitespace().next()?;
    if SHELLS.contains(&program.rsplit('/').next().unwrap_or_default()) {
        return None;
    }
    let mut rest = line;
    let mut double = false;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let next = after.chars().next();
        let ends_word = next.is_none_or(char::is_whitespace);
        let sign = match c {
            '{' if next == Some('{') && after.contains("}}") => {
                rest = after.split_once("}}").map_or("", |(_, behind)| behind);
                continue;
            }
            '\\' => {
                rest = next.map_or("", |escaped| &after[escaped.len_utf8()..]);
                continue;
            }
            '\'' if !double => {
                rest = after.split_once('\'').map_or("", |(_, behind)| behind);
                continue;
            }
            '"' => {
                double = !double;
                None
            }
            '$' if next == Some('(') => Some("$("),
            '$' if next.is_some_and(|next| next == '{' || next == '_' || next.is_ascii_alphabetic()) => {
                Some("$")
            }
            '`' => Some("`"),
            _ if double => None,
            '|' if next == Some('|') => Some("||"),
            '|' => Some("|"),
            '>' if next == Some('>') => Some(">>"),
            '>' => Some(">"),
            '<' => Some("<"),
            '*' => Some("*"),
            // Inside a word these signs are part of an address: http://host/?a=1&b=2.
            '&' if next == Some('&') => Some("&&"),
            '&' if ends_word => Some("&"),
            ';' if ends_word => Some(";"),
            _ => None,
        };
        if sign.is_some() {
            return sign;
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::parts;

    #[test]
    fn blanks_separate_and_quotes_keep_together() {
        for (line, expected) in [
            ("echo hi", vec!["echo", "hi"]),
            ("  echo   'a b'  ", vec!["echo", "a b"]),
            (r#"sh -c "echo \"$HOME\"""#, vec!["sh", "-c", r#"echo "$HOME""#]),
            (r"a\ b c", vec!["a b", "c"]),
            ("x ''", vec!["x", ""]),
            ("pre'fix'ed", vec!["prefixed"]),
            ("a | b > c # d", vec!["a", "|", "b", ">", "c", "#", "d"]),
            ("", vec![]),
        ] {
            assert_eq!(split(line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn a_sign_that_only_a_shell_understands_is_found_unless_it_is_quoted() {
        for (line, sign) in [
            ("ls *.log | wc -l", Some("*")),
            ("ps aux | grep x", Some("|")),
            ("make || true", Some("||")),
            ("date > /tmp/x", Some(">")),
            ("date 2>>/tmp/x", Some(">>")),
            ("cat < /tmp/x", Some("<")),
            ("sleep 5 &", Some("&")),
            ("cd /tmp && ls", Some("&&")),
            ("cd /tmp; ls", Some(";")),
            ("echo $(date)", Some("$(")),
            ("echo \"$HOME\"", Some("$")),
            ("echo `date`", Some("`")),
            ("uptime -p", None),
            ("grep 'a|b' x", None),
            ("grep \"a|b>c\" x", None),
            (r"find . -name \*.log", None),
            ("curl http://x/?a=1&b=2;c", None),
            ("echo {{ params.list | join }}", None),
            ("echo 5$ a$", None),
            ("sh -c 'a | b' > x", None),
            ("/bin/bash -c $X", None),
            ("", None),
        ] {
            assert_eq!(shell_sign(line), sign, "{line}");
        }
    }

    #[test]
    fn an_open_quote_is_refused() {
        assert_eq!(split("echo 'a"), Err(Unsplittable::OpenQuote('\'')));
        assert_eq!(split("echo \"a"), Err(Unsplittable::OpenQuote('"')));
        assert_eq!(split("echo a\\"), Err(Unsplittable::TrailingBackslash));
    }

    #[test]
    fn an_expression_is_never_taken_apart() {
        for (line, expected) in [
            ("echo {{ params.x }}", vec!["echo", "{{ params.x }}"]),
            ("echo a{{ params.x }}b c", vec!["echo", "a{{ params.x }}b", "c"]),
            (
                r#"echo "{{ steps["a b"].outputs.x }} y" z"#,
                vec!["echo", r#"{{ steps["a b"].outputs.x }} y"#, "z"],
            ),
            ("echo '{{ 'a b' }}'", vec!["echo", "{{ 'a b' }}"]),
            (r"echo {{ '\\' }} {a} {", vec!["echo", r"{{ '\\' }}", "{a}", "{"]),
            (r"\{{ params.x }}\\", vec![r"{{ params.x }}\"]),
        ] {
            assert_eq!(split_around(&parts(line).unwrap()).unwrap(), expected, "{line}");
        }
        assert_eq!(split("a {{ b }}").unwrap(), ["a", "{{", "b", "}}"]);
    }
}
