//! Splits a command line into an argv: blanks separate, quotes and backslashes keep together. Nothing is expanded:
//! no variables, globs, pipes or redirections; those are a shell's.

/// Why a text cannot be split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unsplittable {
    #[error("the quote {0} is not closed")]
    OpenQuote(char),
    #[error("a backslash at the end escapes nothing")]
    TrailingBackslash,
}

pub(super) fn split(line: &str) -> Result<Vec<String>, Unsplittable> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match c {
            ' ' | '\t' | '\n' | '\r' => words.extend(word.take()),
            '\\' => {
                let escaped = characters.next().ok_or(Unsplittable::TrailingBackslash)?;
                word.get_or_insert_default().push(escaped);
            }
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next().ok_or(Unsplittable::OpenQuote(c))? {
                        '\'' => break,
                        inside => word.push(inside),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next().ok_or(Unsplittable::OpenQuote(c))? {
                        '"' => break,
                        '\\' => match characters.next().ok_or(Unsplittable::OpenQuote(c))? {
                            escaped @ ('"' | '\\' | '$' | '`') => word.push(escaped),
                            other => word.extend(['\\', other]),
                        },
                        inside => word.push(inside),
                    }
                }
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn an_open_quote_is_refused() {
        assert_eq!(split("echo 'a"), Err(Unsplittable::OpenQuote('\'')));
        assert_eq!(split("echo \"a"), Err(Unsplittable::OpenQuote('"')));
        assert_eq!(split("echo a\\"), Err(Unsplittable::TrailingBackslash));
    }
}
