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
        if c.is_control()
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
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
