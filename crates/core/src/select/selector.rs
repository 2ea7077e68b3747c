//! Owns `Selector`: its text and the parsed rule.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::rule::Rule;
use super::token::Error;
use super::{grammar, unmatched};
use crate::node::NodeRecord;
use crate::words::words;

/// A selector of nodes. It prints as the user wrote it.
#[derive(Clone, PartialEq)]
pub struct Selector {
    text: String,
    rule: Rule,
}

words! {
    /// The long form of a selector: `{scope: group, value: web}`.
    pub enum Scope {
        All = "all",
        Group = "group",
        Node = "node",
    }
}

impl Selector {
    pub fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        Ok(Self { rule: grammar::parse(text)?, text: text.to_owned() })
    }

    /// Returns the selector that matches every node.
    pub fn all() -> Self {
        Self { text: "all".to_owned(), rule: Rule::All }
    }

    /// Converts `{scope, value}` to the short form.
    pub fn of_scope(scope: Scope, value: Option<&str>) -> Result<Self, Error> {
        if scope == Scope::All {
            return Ok(Self::all());
        }
        let word = scope.as_str();
        let value = value.unwrap_or_default();
        // A value that is not a bare word needs quotes.
        let bare = Self::parse(&format!("{word}:{value}"));
        match bare {
            Ok(selector) if !value.chars().any(char::is_whitespace) => Ok(selector),
            _ if value.is_empty() => {
                Err(Error::new(1, format!("`value` is missing: the name of the {word}")))
            }
            _ if value.contains('\'') => Self::parse(&format!("{word}:\"{value}\"")),
            _ => Self::parse(&format!("{word}:'{value}'")),
        }
    }

    pub fn matches(&self, node: &NodeRecord) -> bool {
        self.rule.matches(node)
    }

    /// Explains why no node matches, with suggestions.
    pub fn why_unmatched<'n>(&self, nodes: impl IntoIterator<Item = &'n NodeRecord>) -> String {
        let nodes: Vec<&NodeRecord> = nodes.into_iter().collect();
        unmatched::reason(&self.rule, &self.text, &nodes)
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Selector({:?})", self.text)
    }
}

impl FromStr for Selector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl Serialize for Selector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Short(String),
            Long {
                scope: Scope,
                #[serde(default)]
                value: Option<String>,
            },
        }
        match Written::deserialize(deserializer)? {
            Written::Short(text) => Self::parse(&text),
            Written::Long { scope, value } => Self::of_scope(scope, value.as_deref()),
        }
        .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use proptest::prelude::*;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::backend::Catalogue;
    use crate::ids::{ClusterId, NodeId, SessionId};
    use crate::limits;
    use crate::node::{Description, NodeStatus};

    fn web_01() -> NodeRecord {
        NodeRecord {
            id: NodeId::derive(ClusterId::DEFAULT, "web-01"),
            cluster: ClusterId::DEFAULT,
            session: SessionId(Uuid::nil()),
            description: Description {
                hostname: "web-01".to_owned(),
                groups: vec!["web".to_owned(), "two words".to_owned()],
                labels: BTreeMap::from([
                    ("disk".to_owned(), "ssd".to_owned()),
                    ("rack".to_owned(), "7".to_owned()),
                ]),
                capabilities: BTreeMap::from([
                    ("gpu".to_owned(), json!("nvidia")),
                    ("memory_bytes".to_owned(), json!(8_000_000)),
                    ("kvm".to_owned(), json!(true)),
                ]),
                backends: vec![Catalogue::builtin().backend("exec").unwrap().clone().into()],
                slots: 1,
                version: String::new(),
            },
            status: NodeStatus::Online,
            draining: false,
            registered_at: Timestamp::UNIX_EPOCH,
            seen_at: Timestamp::UNIX_EPOCH,
            installation: None,
            undelivered: Vec::new(),
            kept_since: None,
            displaced: None,
            problems: Vec::new(),
        }
    }

    #[test]
    fn a_selector_means_the_nodes_that_it_describes() {
        let node = web_01();
        for (text, expected) in [
            ("all", true),
            ("group:web", true),
            ("group:db", false),
            ("group:w*", true),
            ("group:'two words'", true),
            ("node:web-01", true),
            ("node:web-*", true),
            ("node:web-02", false),
            ("name ~ web-0?", true),
            ("name = web-01", true),
            ("name != web-01", false),
            ("label.disk", true),
            ("label.colour", false),
            ("label.disk = ssd", true),
            ("label.disk=ssd", true),
            ("label.disk = \"ssd\"", true),
            ("label.disk != ssd", false),
            ("label.disk ~ s*", true),
            ("label.colour != red", true),
            ("label.rack >= 5", true),
            ("label.disk >= 5", false),
            ("capability.gpu = nvidia", true),
            ("capability.gpu", true),
            ("capability.tpu", false),
            ("capability.kvm = true", true),
            ("capability.memory_bytes >= 8000000", true),
            ("capability.memory_bytes > 8000000", false),
            ("capability.memory_bytes < 9e6", true),
            ("capability.memory_bytes = 8000000.0", true),
            ("capability.memory_bytes != 8000000", false),
            ("capability.gpu > 5", false),
            ("capability.tpu < 5", false),
            ("backend:exec", true),
            ("backend:docker", false),
            ("not group:db", true),
            ("not not all", true),
            ("group:web and not node:web-01", false),
            ("group:db or group:web and label.disk = ssd", true),
            ("(group:db or group:web) and label.disk = hdd", false),
            ("group:web AND label.disk = ssd", true),
            ("not group:db and group:web", true),
            ("not (group:db or group:web)", false),
        ] {
            assert_eq!(Selector::parse(text).unwrap().matches(&node), expected, "{text}");
        }
        assert!(Selector::parse(&format!("node:{}", node.id)).unwrap().matches(&node));
    }

    #[test]
    fn an_error_names_the_column_and_what_would_be_valid() {
        for (text, column, part) in [
            ("zone=b", 1, "did you mean `label.zone = b`?"),
            ("zone ~ 'b c'", 1, "did you mean `label.zone ~ 'b c'`?"),
            ("cpus >= 4", 1, "did you mean `capability.cpus >= 4`?"),
            ("group = web", 1, "did you mean `group:web`?"),
            ("hostname=web-01", 1, "did you mean `name = web-01`?"),
            ("all and nmae ~ web-*", 9, "did you mean `name ~ web-*`?"),
            ("zone:b", 1, "did you mean `label.zone = b`?"),
            ("", 1, "the selector is empty; valid are: all, group:NAME"),
            ("web", 1, "did you mean `group:web` or `node:web`?"),
            ("al", 1, "did you mean `all`?"),
            ("gorup:web", 1, "did you mean `group:web`?"),
            ("group:", 1, "write `group:NAME`"),
            ("label:disk", 1, "write `label.disk`, with a dot"),
            ("label. = x", 1, "write `label.KEY`"),
            ("name", 5, "write `name ~ web-*`"),
            ("group:web and", 14, "missing at the end"),
            ("and group:web", 1, "an expression is missing before `and`"),
            ("group:web group:db", 11, "`and` or `or` is missing"),
            ("group:web && all", 11, "write `and`"),
            ("group:web || all", 11, "write `or`"),
            ("!group:web", 1, "write `not`"),
            ("label.disk == ssd", 12, "a single `=`"),
            ("label.disk =", 13, "a value is missing after `=`"),
            ("label.disk > fast", 14, "`>` compares numbers, but `fast` is not a number"),
            ("(all", 1, "not closed"),
            ("all)", 4, "has no `(`"),
            ("group:ü and (", 14, "missing at the end"),
            ("label.x = 'y", 11, "the quote ' is not closed"),
            ("node:a,node:b", 7, "`node:a or node:b`"),
            ("all \u{1}", 5, "cannot be part of a selector"),
        ] {
            let error = Selector::parse(text).unwrap_err();
            assert!(error.message.contains(part), "{text}: {error}");
            assert_eq!(error.column, column, "{text}: {error}");
        }
    }

    #[test]
    fn depth_and_length_are_bounded() {
        let deep = format!("{}all{}", "(".repeat(1_000), ")".repeat(1_000));
        assert!(Selector::parse(&deep).unwrap_err().message.contains("levels deep"));
        assert!(Selector::parse(&format!("{}all", "not ".repeat(1_000))).is_err());
        let long = vec!["all"; limits::SELECTOR_BYTES / 7].join(" or ");
        assert!(Selector::parse(&long).is_ok());
        assert!(Selector::parse(&format!("{long} or {long}")).unwrap_err().message.contains("bytes"));
    }

    #[test]
    fn the_long_form_reads_as_the_short_one() {
        for (long, short) in [
            (json!({"scope": "all"}), "all"),
            (json!({"scope": "group", "value": "web"}), "group:web"),
            (json!({"scope": "node", "value": "web-01"}), "node:web-01"),
            (json!({"scope": "group", "value": "a or all"}), "group:'a or all'"),
            (json!({"scope": "group", "value": "it's"}), "group:\"it's\""),
            (json!("group:web"), "group:web"),
        ] {
            let selector: Selector = serde_json::from_value(long).unwrap();
            assert_eq!(selector.to_string(), short);
            assert_eq!(serde_json::to_value(&selector).unwrap(), json!(short));
            assert_eq!(Selector::parse(short).unwrap(), selector);
        }
        assert!(serde_json::from_value::<Selector>(json!({"scope": "group"})).is_err());
    }

    fn condition() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("all".to_owned()),
            "group:[a-z*]{1,5}",
            "node:[a-z0-9-]{1,8}",
            "backend:[a-z]{1,5}",
            "label\\.[a-z]{1,4}",
            "label\\.[a-z]{1,4} (=|!=|~) ([a-z]{1,4}|'[a-z ]{0,4}')",
            "capability\\.[a-z_]{1,6} (=|!=|<|<=|>|>=) [0-9]{1,4}",
        ]
    }

    fn expression() -> impl Strategy<Value = String> {
        condition().prop_recursive(4, 32, 3, |inner| {
            prop_oneof![
                (inner.clone(), prop_oneof!["and", "or"], inner.clone())
                    .prop_map(|(a, op, b)| format!("{a} {op} {b}")),
                inner.clone().prop_map(|a| format!("not {a}")),
                inner.prop_map(|a| format!("( {a} )")),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_as_the_same_selector(text in expression()) {
            let selector = Selector::parse(&text).unwrap();
            prop_assert_eq!(Selector::parse(&selector.to_string()).unwrap(), selector.clone());
            prop_assert_eq!(selector.to_string(), text.trim());
        }

        #[test]
        fn not_turns_every_answer_around(text in expression()) {
            let node = web_01();
            let plain = Selector::parse(&text).unwrap().matches(&node);
            let turned = Selector::parse(&format!("not ({text})")).unwrap().matches(&node);
            prop_assert_ne!(plain, turned);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in any::<String>()) {
            if let Err(error) = Selector::parse(&text) {
                prop_assert!(error.column >= 1);
                prop_assert!(!error.message.is_empty());
            }
        }

        #[test]
        fn no_mix_of_its_own_words_makes_the_parser_panic(
            words in proptest::collection::vec(
                prop_oneof!["and", "or", "not", "all", "\\(", "\\)", "name", "=", "!=", "~", ">=", "label\\.x", "group:", "'", "5"],
                0..20,
            )
        ) {
            let _ = Selector::parse(&words.concat());
            let _ = Selector::parse(&words.join(" "));
        }
    }
}
