//! Decides the type of a plain YAML scalar, by the core schema of YAML 1.2: `yes`, `1_000` and dates are texts.

use std::borrow::Cow;

use serde_json::Number;

use super::tree::Content;

pub(super) fn plain(text: Cow<'_, str>) -> Content<'_> {
    match text.as_ref() {
        "" | "~" | "null" | "Null" | "NULL" => return Content::Null,
        "true" | "True" | "TRUE" => return Content::Boolean { value: true, written: Some(text) },
        "false" | "False" | "FALSE" => return Content::Boolean { value: false, written: Some(text) },
        _ => {}
    }
    match number(&text) {
        Some(value) => Content::Number { value, written: Some(text) },
        None => Content::Text(text),
    }
}

/// Reads a number. Infinities and not-a-number stay texts: no field of a job file uses them, and JSON cannot contain
/// them.
fn number(text: &str) -> Option<Number> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return None;
    }
    if let Some(digits) = text.strip_prefix("0x") {
        return whole(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return whole(digits, 8);
    }
    if let Ok(number) = text.parse::<i64>() {
        return Some(number.into());
    }
    if let Ok(number) = text.parse::<u64>() {
        return Some(number.into());
    }
    if !text.contains(|c: char| c.is_ascii_digit())
        || text.contains(|c: char| !c.is_ascii_digit() && !matches!(c, '+' | '-' | '.' | 'e' | 'E'))
    {
        return None;
    }
    text.parse::<f64>().ok().and_then(Number::from_f64)
}

fn whole(digits: &str, radix: u32) -> Option<Number> {
    let unsigned = !digits.starts_with(['+', '-']);
    u64::from_str_radix(digits, radix).ok().filter(|_| unsigned).map(Number::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_follow_the_core_schema() {
        let kind = |text: &'static str| match plain(Cow::Borrowed(text)) {
            Content::Null => "null".to_owned(),
            Content::Boolean { value, .. } => format!("boolean {value}"),
            Content::Number { value, .. } => format!("number {value}"),
            Content::Text(text) => format!("text {text}"),
            other => format!("{other:?}"),
        };
        for (text, expected) in [
            ("", "null"),
            ("~", "null"),
            ("True", "boolean true"),
            ("yes", "text yes"),
            ("5", "number 5"),
            ("+5", "number 5"),
            ("-5", "number -5"),
            ("0755", "number 755"),
            ("0x1F", "number 31"),
            ("0o17", "number 15"),
            ("0x+1", "text 0x+1"),
            ("1.50", "number 1.5"),
            (".5", "number 0.5"),
            ("1e3", "number 1000.0"),
            ("18446744073709551615", "number 18446744073709551615"),
            (".inf", "text .inf"),
            ("-", "text -"),
            ("1e999", "text 1e999"),
            ("2024-01-01", "text 2024-01-01"),
            ("1_000", "text 1_000"),
            ("1.2.3", "text 1.2.3"),
            ("30m", "text 30m"),
        ] {
            assert_eq!(kind(text), expected, "{text}");
        }
    }
}
