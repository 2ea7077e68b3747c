//! Converts the names and texts of a command line to params. It never fails: a value that does not fit is kept, and
//! `check_params` reports it.

use serde_json::Value;

use super::schema::{ActionSchema, ParamKind, Params};

/// Converts by the schema: `--exit-code 5` is a number if one is declared; a repeated name is a list; `K=V` adds to a
/// map.
pub fn coerce(action: &ActionSchema, given: Vec<(String, String)>) -> Params {
    let mut grouped: Vec<(String, Vec<String>)> = Vec::new();
    for (name, text) in given {
        match grouped.iter_mut().find(|(known, _)| *known == name) {
            Some((_, texts)) => texts.push(text),
            None => grouped.push((name, vec![text])),
        }
    }
    let kind_of = |name: &str| action.params.iter().find(|param| param.name == name).map(|param| param.kind);
    let coerce = |(name, texts): (String, Vec<String>)| {
        let kind = kind_of(&name).unwrap_or(ParamKind::Text);
        (name, coerced(kind, texts))
    };
    grouped.into_iter().map(coerce).collect()
}

fn coerced(kind: ParamKind, mut texts: Vec<String>) -> Value {
    match kind {
        ParamKind::Texts => Value::Array(texts.into_iter().map(Value::String).collect()),
        ParamKind::Map if texts.iter().all(|text| text.contains('=')) => {
            let pairs = texts.iter().filter_map(|text| text.split_once('='));
            Value::Object(pairs.map(|(key, value)| (key.to_owned(), value.into())).collect())
        }
        _ if texts.len() == 1 => scalar(kind, texts.remove(0)),
        _ => Value::Array(texts.into_iter().map(|text| scalar(kind, text)).collect()),
    }
}

fn scalar(kind: ParamKind, text: String) -> Value {
    match kind {
        ParamKind::Integer => text.parse::<i64>().map_or_else(|_| Value::String(text), Value::from),
        ParamKind::Boolean => text.parse::<bool>().map_or_else(|_| Value::String(text), Value::from),
        ParamKind::Any => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        _ => Value::String(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::backend::{Catalogue, check_params};

    fn coerce_for(backend: &str, action: &str, given: &[(&str, &str)]) -> Value {
        let catalogue = Catalogue::builtin();
        let action = catalogue.action(backend, action).unwrap();
        let given = given.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        serde_json::to_value(coerce(action, given)).unwrap()
    }

    #[test]
    fn texts_take_the_type_that_is_declared() {
        assert_eq!(
            coerce_for("test", "fail", &[("message", "5"), ("exit_code", "5")]),
            json!({"message": "5", "exit_code": 5})
        );
    }

    #[test]
    fn repeated_names_are_lists_and_pairs_are_maps() {
        assert_eq!(
            coerce_for(
                "exec",
                "run",
                &[("command", "echo"), ("command", "a b"), ("args", "c"), ("env", "A=1"), ("env", "B=x=y")]
            ),
            json!({"command": ["echo", "a b"], "args": ["c"], "env": {"A": "1", "B": "x=y"}})
        );
    }

    #[test]
    fn a_list_may_be_said_with_one_word_or_several() {
        assert_eq!(coerce_for("apt", "install", &[("package", "curl")]), json!({"package": ["curl"]}));
        assert_eq!(
            coerce_for("apt", "remove", &[("package", "curl"), ("purge", "true"), ("package", "vim")]),
            json!({"package": ["curl", "vim"], "purge": true})
        );
        assert_eq!(
            coerce_for("http", "request", &[("url", "http://x"), ("expect", r#"{"status": "2xx"}"#)]),
            json!({"url": "http://x", "expect": {"status": "2xx"}})
        );
    }

    #[test]
    fn what_does_not_fit_is_left_for_the_check() {
        let catalogue = Catalogue::builtin();
        let action = catalogue.action("test", "fail").unwrap();
        let params = coerce(action, vec![("exit_code".to_owned(), "five".to_owned())]);
        assert_eq!(
            check_params(action, &params).unwrap_err()[0].message,
            "must be a whole number from 0 to 255, not the string \"five\""
        );
    }
}
