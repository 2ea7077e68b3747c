//! Reads the body of a request that starts a job: JSON, or a form.

use serde_json::{Map, Value};

use crate::shown::shown;

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    Json,
    /// `application/x-www-form-urlencoded`.
    Form,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPayload {
    #[error("the body is not valid JSON: {0}")]
    Json(String),
    #[error("the form's field `payload` is not valid JSON: {0}")]
    Field(String),
    #[error("the form has the field `{0}` twice")]
    Twice(String),
    #[error("the form is not valid UTF-8")]
    Text,
}

/// Returns the value that expressions read as `payload`. An empty body is `null`. A form is a map of texts; one whose only
/// field is `payload` holds JSON, as GitHub and Slack send it.
pub fn read_payload(kind: PayloadKind, body: &[u8]) -> Result<Value, BadPayload> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Null);
    }
    match kind {
        PayloadKind::Json => {
            serde_json::from_slice(body).map_err(|error| BadPayload::Json(error.to_string()))
        }
        PayloadKind::Form => form(body),
    }
}

fn form(body: &[u8]) -> Result<Value, BadPayload> {
    let mut fields = Map::new();
    for (name, value) in form_urlencoded::parse(body) {
        // The parser replaces what is not UTF-8.
        if name.contains('\u{fffd}') || value.contains('\u{fffd}') {
            return Err(BadPayload::Text);
        }
        if fields.insert(name.clone().into_owned(), Value::String(value.into_owned())).is_some() {
            return Err(BadPayload::Twice(shown(&name)));
        }
    }
    match fields.get("payload") {
        Some(Value::String(text)) if fields.len() == 1 => {
            serde_json::from_str(text).map_err(|error| BadPayload::Field(error.to_string()))
        }
        _ => Ok(Value::Object(fields)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bodies_are_read_as_they_are_written() {
        use PayloadKind::{Form, Json};
        for (kind, body, expected) in [
            (Json, "", Ok(json!(null))),
            (Form, " \n", Ok(json!(null))),
            (Json, r#"{"ref": "main", "n": 1}"#, Ok(json!({"ref": "main", "n": 1}))),
            (Json, "[1]", Ok(json!([1]))),
            (
                Form,
                "command=%2Fdeploy&text=web+now%21&empty=",
                Ok(json!({"command": "/deploy", "text": "web now!", "empty": ""})),
            ),
            (Form, "payload=%7B%22ref%22%3A%22main%22%7D", Ok(json!({"ref": "main"}))),
            (Form, "payload=x&more=y", Ok(json!({"payload": "x", "more": "y"}))),
            (Form, "a=1&a=2", Err("the form has the field `a` twice")),
            (Form, "a=%ff", Err("the form is not valid UTF-8")),
            (
                Form,
                "payload=x",
                Err("the form's field `payload` is not valid JSON: expected value at line 1 column 1"),
            ),
            (
                Json,
                "{\"a\":",
                Err("the body is not valid JSON: EOF while parsing a value at line 1 column 5"),
            ),
        ] {
            let read = read_payload(kind, body.as_bytes()).map_err(|error| error.to_string());
            assert_eq!(read, expected.map_err(str::to_owned), "{body}");
        }
        assert!(read_payload(Json, "[".repeat(100_000).as_bytes()).is_err(), "the depth is bounded");
        assert!(read_payload(Json, b"\"\xff\"").is_err());
    }
}
