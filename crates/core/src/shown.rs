//! Prepares users' text for messages: cuts it to a readable length, and makes control characters visible.

use std::borrow::Cow;

/// A longer excerpt is not easier to recognise.
const CHARACTERS_SHOWN: usize = 60;

/// Returns the text, safe to print inside a one-line message.
pub fn shown(text: &str) -> String {
    let mut shown = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == CHARACTERS_SHOWN {
            shown.push('…');
            break;
        }
        if is_unprintable(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Returns the whole text with visible control characters. Line ends stay: for a message of several lines.
pub fn escaped(text: &str) -> Cow<'_, str> {
    let is_harmless = |c: char| c == '\n' || !is_unprintable(c);
    if text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_harmless(c) {
            escaped.push(c);
        } else {
            escaped.extend(c.escape_default());
        }
    }
    Cow::Owned(escaped)
}

/// Cuts a text to this many bytes, and marks the cut.
pub(crate) fn cut(text: &mut String, most_bytes: usize) {
    const MARK: char = '…';
    if text.len() > most_bytes {
        text.truncate(text.floor_char_boundary(most_bytes.saturating_sub(MARK.len_utf8())));
        text.push(MARK);
    }
}

/// Returns whether a character breaks a line or a terminal, or changes the direction of the text around it.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_text_cannot_speak_to_the_terminal() {
        assert_eq!(escaped("two\nlines"), "two\nlines");
        assert_eq!(escaped("evil\u{1b}]0;owned\u{7}\u{202e}"), "evil\\u{1b}]0;owned\\u{7}\\u{202e}");
    }

    #[test]
    fn long_and_strange_texts_stay_on_one_readable_line() {
        assert_eq!(shown("web-01"), "web-01");
        assert_eq!(shown("a\nb\0\u{1b}[31m"), "a\\nb\\u{0}\\u{1b}[31m");
        assert_eq!(shown(&"x".repeat(1_000)).chars().count(), CHARACTERS_SHOWN + 1);
    }
}
