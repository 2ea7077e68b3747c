//! Owns patterns of names: `*` matches any characters, `?` matches one. Nothing else is special.

/// A pattern. Without a star or a question mark it matches only itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob(String);

impl Glob {
    pub(super) fn new(pattern: &str) -> Self {
        Self(pattern.to_owned())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        if !self.0.contains(['*', '?']) {
            return self.0 == text;
        }
        let pattern: Vec<char> = self.0.chars().collect();
        let text: Vec<char> = text.chars().collect();
        let (mut p, mut t) = (0, 0);
        // The position of the last star and how much it matched. The search only ever backtracks to this point, so
        // the time is bounded by the product of the lengths.
        let mut star: Option<(usize, usize)> = None;
        while t < text.len() {
            match pattern.get(p) {
                Some('*') => {
                    star = Some((p, t));
                    p += 1;
                }
                Some(c) if *c == '?' || *c == text[t] => {
                    p += 1;
                    t += 1;
                }
                _ => match star {
                    Some((at, swallowed)) => {
                        star = Some((at, swallowed + 1));
                        p = at + 1;
                        t = swallowed + 1;
                    }
                    None => return false,
                },
            }
        }
        pattern[p..].iter().all(|c| *c == '*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, expected) in [
            ("web-01", "web-01", true),
            ("web-01", "web-011", false),
            ("web-*", "web-01", true),
            ("web-*", "web-", true),
            ("web-*", "db-01", false),
            ("*-01", "web-01", true),
            ("*web*01", "my-web-and-01", true),
            ("w?b", "wob", true),
            ("w?b", "wb", false),
            ("*", "", true),
            ("?", "", false),
            ("a*b*c", "aXbYbZ", false),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), expected, "{pattern} on {text}");
        }
    }
}
