//! Finds the expressions in a text: the parts between `{{` and `}}`, with respect to quotes and brackets.

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part<'t> {
    Plain(&'t str),
    /// The text between the braces.
    Expression(&'t str),
}

/// Returns whether the text may contain an expression.
pub(crate) fn holds_expression(text: &str) -> bool {
    text.contains("{{")
}

/// Splits a text into its parts, or returns why it is invalid.
pub(crate) fn parts(text: &str) -> Result<Vec<Part<'_>>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(begin) = rest.find("{{") {
        if begin > 0 {
            parts.push(Part::Plain(&rest[..begin]));
        }
        let inside = &rest[begin + 2..];
        let Some(end) = end(inside) else {
            let message =
                "`{{` is not closed by `}}`; a literal `{{` is written as an expression: {{ \"{{\" }}";
            return Err(message.to_owned());
        };
        parts.push(Part::Expression(&inside[..end]));
        rest = &inside[end + 2..];
    }
    if !rest.is_empty() {
        parts.push(Part::Plain(rest));
    }
    Ok(parts)
}

/// Returns the position of the closing braces.
fn end(inside: &str) -> Option<usize> {
    let bytes = inside.as_bytes();
    let mut quote = None;
    let mut braces = 0_usize;
    let mut index = 0;
    while index < bytes.len() {
        match (quote, bytes[index]) {
            (Some(_), b'\\') => index += 1,
            (Some(open), byte) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, b'{') => braces += 1,
            (None, b'}') if braces > 0 => braces -= 1,
            (None, b'}') if bytes.get(index + 1) == Some(&b'}') => return Some(index),
            (None, _) => {}
        }
        index += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::Part::{Expression, Plain};
    use super::*;

    #[test]
    fn expressions_end_where_their_own_braces_and_quotes_do() {
        let cases: [(&str, &[Part<'_>]); 9] = [
            ("", &[]),
            ("a } b }} { c", &[Plain("a } b }} { c")]),
            ("{{ x }}", &[Expression(" x ")]),
            ("a{{x}}b{{ y }}", &[Plain("a"), Expression("x"), Plain("b"), Expression(" y ")]),
            (r#"{{ "}}" }}"#, &[Expression(r#" "}}" "#)]),
            (r#"{{ '"}}' ~ "\"}}" }}!"#, &[Expression(r#" '"}}' ~ "\"}}" "#), Plain("!")]),
            (r#"{{ {"a": {"b": 1}} }}"#, &[Expression(r#" {"a": {"b": 1}} "#)]),
            ("{{}}", &[Expression("")]),
            ("ü{{ü}}ü", &[Plain("ü"), Expression("ü"), Plain("ü")]),
        ];
        for (text, expected) in cases {
            assert_eq!(parts(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn an_expression_that_does_not_end_is_refused() {
        for text in ["{{", "a {{ x }", "{{ \"x }}", "{{ { }}", "{{ 'x\\' }}", "{{ x }} {{"] {
            assert!(parts(text).unwrap_err().contains("not closed"), "{text}");
        }
    }
}
