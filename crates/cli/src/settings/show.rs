//! Owns how settings are shown: each key with its value and its source.

use serde::Serialize;
use serde_json::{Map, Value, json};

#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) section: &'static str,
    pub(crate) rows: Vec<Row>,
    /// A part that is shown as it is in the file.
    pub(crate) tree: Option<Tree>,
}

/// A part of the file with nested sections.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) name: &'static str,
    pub(crate) value: Value,
    pub(crate) source: String,
}

#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) key: &'static str,
    pub(crate) value: Value,
    pub(crate) source: String,
}

impl Shown {
    /// Renders a valid section of `downbeat.toml`, with the sources as comments.
    pub(crate) fn toml(&self) -> String {
        let lines: Vec<(String, &str)> =
            self.rows.iter().map(|row| (line(row), row.source.as_str())).collect();
        let width = lines.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0);
        let mut text = format!("[{}]\n", self.section);
        for (line, source) in lines {
            text.push_str(&format!("{line:width$}  # {source}\n"));
        }
        if let Some(Tree { name, value, source }) = &self.tree {
            let tree = toml::to_string(&json!({ *name: value })).unwrap_or_default();
            text.push_str(&format!("\n# {source}\n{tree}"));
        }
        text
    }
}

fn line(row: &Row) -> String {
    match &row.value {
        // TOML has no null: a comment shows that the key is not set.
        Value::Null => format!("# {} =", row.key),
        _ => format!("{} = {}", row.key, toml_value(&printable(row))),
    }
}

fn toml_value(value: &Value) -> String {
    match value {
        Value::Object(map) if map.is_empty() => "{}".to_owned(),
        Value::Object(map) => {
            let pair = |(key, value)| format!("{} = {}", Value::from(String::as_str(key)), toml_value(value));
            format!("{{ {} }}", map.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(toml_value).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

/// Returns the value without secrets.
fn printable(row: &Row) -> Value {
    match (row.key, &row.value) {
        ("store" | "smtp_url", Value::String(url)) => without_password(url).into(),
        (_, value) => value.clone(),
    }
}

impl Serialize for Shown {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows: Map<String, Value> = self
            .rows
            .iter()
            .map(|row| (row.key.to_owned(), json!({"value": printable(row), "source": row.source})))
            .collect();
        let mut shown = json!({ self.section: rows });
        if let Some(Tree { name, value, source }) = &self.tree {
            shown[name] = json!({"value": value, "source": source});
        }
        shown.serialize(serializer)
    }
}

/// Removes the password from `postgres://user:secret@host/db`.
pub(crate) fn without_password(store: &str) -> String {
    let Some((scheme, rest)) = store.split_once("://") else { return store.to_owned() };
    match rest.rsplit_once('@') {
        Some((user, host)) => {
            let user = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{user}@{host}")
        }
        None => store.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_printed() {
        assert_eq!(without_password("postgres://joe:p@ss:w@db:5432/x"), "postgres://joe@db:5432/x");
        assert_eq!(without_password("sqlite:./a@b.db"), "sqlite:./a@b.db");
    }
}
