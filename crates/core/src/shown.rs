//! Owns how people's own words are repeated to them: cut to a readable length, control characters made visible.

/// Longer words are not recognised any better.
const CHARACTERS_SHOWN: usize = 60;

/// The text, safe to print inside a one-line message.
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

/// Whether a character breaks a line or a terminal, or turns the direction of the text around it.
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
    fn long_and_strange_texts_stay_on_one_readable_line() {
        assert_eq!(shown("web-01"), "web-01");
        assert_eq!(shown("a\nb\0\u{1b}[31m"), "a\\nb\\u{0}\\u{1b}[31m");
        assert_eq!(shown(&"x".repeat(1_000)).chars().count(), CHARACTERS_SHOWN + 1);
    }
}
