//! Owns how a result looks as YAML: block style; strings that could be read as another type are quoted as in JSON.

use std::fmt::Write;

use serde_json::Value;

const INDENT: &str = "  ";

/// Returns a whole document, with its last line end.
pub(crate) fn document(value: &Value) -> String {
    let mut text = String::new();
    block(&mut text, value, 0);
    text
}

fn block(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                indent(text, depth);
                text.push_str(&scalar_text(key));
                text.push(':');
                nested(text, value, depth);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                indent(text, depth);
                text.push_str("- ");
                let mut inner = String::new();
                block(&mut inner, item, depth + 1);
                // The first line follows the dash, which is as wide as an indent.
                text.push_str(&inner[(depth + 1) * INDENT.len()..]);
            }
        }
        other => {
            indent(text, depth);
            text.push_str(&scalar(other));
            text.push('\n');
        }
    }
}

fn nested(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => text.push('\n'),
        Value::Array(items) if !items.is_empty() => text.push('\n'),
        scalar_value => return text.push_str(&format!(" {}\n", scalar(scalar_value))),
    }
    block(text, value, depth + 1);
}

fn indent(text: &mut String, depth: usize) {
    for _ in 0..depth {
        text.push_str(INDENT);
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => scalar_text(text),
        // Empty lists and maps are written as in JSON; others are blocks.
        other => other.to_string(),
    }
}

/// Returns the text unquoted if every reader of YAML 1.1 and 1.2 reads it as this string.
fn scalar_text(text: &str) -> String {
    let plain_chars = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ' ');
    let starts_like_text = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let is_word = ["true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"]
        .contains(&text.to_ascii_lowercase().as_str());
    if starts_like_text && !is_word && !text.ends_with(' ') && text.chars().all(plain_chars) {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            // C1 controls and the byte order mark are not printable in YAML either.
            c if c.is_control() || c == '\u{feff}' || c == '\u{2028}' || c == '\u{2029}' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_is_read_back_as_the_same() {
        let catalogue = downbeat_core::backend::Catalogue::builtin();
        for text in [
            "plain",
            "two words",
            "",
            " ",
            " x",
            "x ",
            "12",
            "1e3",
            "0x1f",
            "1:30",
            "~",
            "null",
            "NO",
            "yes",
            "-",
            "- a",
            "a: b",
            "a #b",
            "#a",
            "&a",
            "*a",
            "!a",
            "|",
            ">",
            "%a",
            "@a",
            "`a`",
            "'a'",
            "\"a\"",
            "{a",
            "[a",
            "a,b",
            "?",
            "a\nb",
            "\ttab",
            "c:\\d",
            "2025-06-01",
            "ü€😀",
            "\u{7}\u{1b}[31m",
            "\u{85}\u{a0}\u{2028}",
            ".nan",
            "=",
            "<<",
            "---",
            "...",
        ] {
            let value = json!({"target": "all", "tasks": [{"backend": "test", "action": "echo", "params": {"message": text}}]});
            let written = document(&value);
            let read = downbeat_core::spec::parse(&written, "written.yaml", &catalogue);
            assert_eq!(read, downbeat_core::spec::from_json(&value, &catalogue), "{text:?}:\n{written}");
        }
    }

    #[test]
    fn what_could_be_read_otherwise_is_quoted() {
        let value = json!({
            "id": "web-01", "no": "no", "number": "12", "empty": "", "list": [], "map": {},
            "steps": [{"name": "a: b", "ok": true}, [1, 2], null], "text": "two\nlines \"quoted\" \u{7}",
        });
        insta::assert_snapshot!(document(&value));
    }
}
