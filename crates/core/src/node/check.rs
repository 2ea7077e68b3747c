//! Decides which descriptions of a node are valid, and bounds the problems that an agent reports. The server keeps,
//! lists and prints thousands of descriptions, and anybody who reaches the agents' port can send one. So their size is
//! bounded, and names contain nothing that a shell, a selector or a terminal would interpret.

use serde_json::Value;

use super::record::Description;
use crate::backend::BackendSchema;
use crate::limits;
use crate::shown::{cut, is_unprintable, shown};

/// An invalid field of a description, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: {what}")]
pub struct BadDescription {
    pub field: &'static str,
    pub what: String,
}

/// Returns the error of a field, for `map_err`.
fn bad(field: &'static str) -> impl Fn(String) -> BadDescription {
    move |what| BadDescription { field, what }
}

impl Description {
    /// Checks everything but the total size, which is known only for its JSON; see [`check_json_bytes`].
    pub fn check(&self) -> Result<(), BadDescription> {
        let Self { hostname, groups, labels, capabilities, backends, slots, version } = self;
        let of_value = |name: &str, what: String| format!("the value of `{name}` {what}");
        check_hostname(hostname).map_err(bad("hostname"))?;
        check_count("groups", groups.len(), limits::GROUPS_PER_NODE)?;
        for group in groups {
            check_path(group).map_err(bad("groups"))?;
        }
        check_count("labels", labels.len(), limits::LABELS_PER_NODE)?;
        for (name, value) in labels {
            check_path(name).map_err(bad("labels"))?;
            check_text(value).map_err(|what| of_value(name, what)).map_err(bad("labels"))?;
        }
        check_count("capabilities", capabilities.len(), limits::CAPABILITIES_PER_NODE)?;
        for (name, value) in capabilities {
            check_name(name).map_err(bad("capabilities"))?;
            let checked = match value {
                Value::String(text) => check_text(text),
                Value::Number(_) | Value::Bool(_) => Ok(()),
                Value::Null | Value::Array(_) | Value::Object(_) => {
                    Err("is not a string, a number or a boolean".to_owned())
                }
            };
            checked.map_err(|what| of_value(name, what)).map_err(bad("capabilities"))?;
        }
        check_count("backends", backends.len(), limits::BACKENDS_PER_NODE)?;
        for backend in backends {
            check_backend(backend).map_err(bad("backends"))?;
        }
        if *slots > limits::SLOTS_PER_NODE {
            let most = limits::SLOTS_PER_NODE;
            return Err(bad("slots")(format!("{slots} is more than {most}")));
        }
        check_text(version).map_err(bad("version"))
    }
}

/// Checks the total size of a description as JSON.
pub fn check_json_bytes(bytes: usize) -> Result<(), BadDescription> {
    let most = limits::DESCRIPTION_BYTES;
    if bytes > most {
        return Err(bad("description")(format!("is {bytes} bytes long, more than {most}")));
    }
    Ok(())
}

/// Checks the name of a host. It is used as it was given: names that differ in case are two nodes, because the node's id is
/// derived from the name. Not more than a DNS name may have, and a name of another alphabet in its ASCII form (`xn--…`).
fn check_hostname(name: &str) -> Result<(), String> {
    check_name(name)
}

/// Checks a name: of a host, a capability, a backend, an action or a param.
pub fn check_name(name: &str) -> Result<(), String> {
    check_characters(name, &['.', '-', '_'], "`.`, `-` and `_`")
}

/// Checks the name of a group or a label; other systems use names such as `kubernetes.io/role` and `aws:zone`.
fn check_path(name: &str) -> Result<(), String> {
    check_characters(name, &['.', '-', '_', '/', ':'], "`.`, `-`, `_`, `/` and `:`")
}

/// Checks a name of letters, digits and these marks; `listed` names the marks in the error.
fn check_characters(name: &str, marks: &[char], listed: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || marks.contains(&c);
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !starts_well || !name.chars().all(is_allowed) {
        return Err(format!(
            "`{}` is not a valid name; use letters, digits, {listed}, and start with a letter or a digit",
            shown(name)
        ));
    }
    if name.len() > limits::NAME_BYTES {
        return Err(format!("`{}` is longer than {} bytes", shown(name), limits::NAME_BYTES));
    }
    Ok(())
}

fn check_backend(backend: &BackendSchema) -> Result<(), String> {
    check_name(&backend.name)?;
    let of_backend = |what: &str, error: String| format!("{what} of `{}` {error}", backend.name);
    check_text(&backend.help).map_err(|error| of_backend("a help text", error))?;
    for action in &backend.actions {
        check_name(&action.name)?;
        for param in &action.params {
            check_name(&param.name)?;
            check_text(&param.help).map_err(|error| of_backend("a help text", error))?;
            for choice in &param.choices {
                check_text(choice).map_err(|error| of_backend("a choice", error))?;
            }
            for pattern in param.pattern.iter().chain(&param.name_pattern) {
                check_text(pattern).map_err(|error| of_backend("a pattern", error))?;
            }
        }
    }
    Ok(())
}

fn check_count(field: &'static str, found: usize, most: usize) -> Result<(), BadDescription> {
    if found > most {
        return Err(bad(field)(format!("there are {found}, more than {most}")));
    }
    Ok(())
}

/// Checks a text for people.
fn check_text(text: &str) -> Result<(), String> {
    if text.len() > limits::NODE_TEXT_BYTES {
        return Err(format!("is {} bytes long, more than {}", text.len(), limits::NODE_TEXT_BYTES));
    }
    if text.chars().any(is_unprintable) {
        return Err(format!("contains a control character: `{}`", shown(text)));
    }
    Ok(())
}

/// Returns the problems to keep: a bounded number of bounded texts, without duplicates and empty ones.
pub fn bounded_problems(reported: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for mut text in reported {
        cut(&mut text, limits::PROBLEM_BYTES);
        if kept.len() < limits::PROBLEMS_PER_NODE && !text.trim().is_empty() && !kept.contains(&text) {
            kept.push(text);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::backend::{Catalogue, ParamSchema};

    fn description() -> Description {
        Description {
            hostname: "web-01.example.com".to_owned(),
            groups: vec!["web".to_owned()],
            labels: [("zone".to_owned(), "Zürich, 2nd floor".to_owned())].into(),
            capabilities: [("cpu".to_owned(), json!(8)), ("gpu".to_owned(), json!("h100"))].into(),
            backends: Catalogue::builtin().backends().to_vec(),
            slots: 8,
            version: "0.1.0".to_owned(),
        }
    }

    #[test]
    fn a_name_has_letters_digits_dots_hyphens_and_underscores() {
        for good in ["a", "web-01", "3com", "node_1.example.com", &"x".repeat(limits::NAME_BYTES)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        let long = "x".repeat(limits::NAME_BYTES + 1);
        for bad in
            ["", "-x", ".x", "*", "a b", "a,b", "a\nb", "\0", "\u{1b}[31mred", "x\u{202e}y", "zürich", &long]
        {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert_eq!(
            check_name("evil\u{1b}]0;owned\u{7}").unwrap_err(),
            "`evil\\u{1b}]0;owned\\u{7}` is not a valid name; use letters, digits, `.`, `-` and `_`, and start with a \
             letter or a digit"
        );
    }

    #[test]
    fn a_hostname_is_ascii_of_at_most_253_characters_in_any_case() {
        let long = |length: usize| format!("{}.example.com", "x".repeat(length - ".example.com".len()));
        let (longest, too_long, longer) = (long(253), long(254), long(255));
        for (hostname, is_valid) in [
            ("web-01", true),
            ("WEB-01", true),
            ("Web-01.Example.COM", true),
            ("a.b.c.d", true),
            ("ip-10-0-0-1.eu-central-1.compute.internal", true),
            ("build_agent_7", true),
            ("10.0.0.1", true),
            ("xn--bcher-kva.example.com", true),
            ("web-01.", true),
            (&longest, true),
            (&too_long, false),
            (&longer, false),
            ("", false),
            (".", false),
            (".web-01", false),
            ("-web-01", false),
            ("bücher.example.com", false),
            ("ウェブ", false),
            // The Cyrillic letter looks like `a`.
            ("web-\u{430}", false),
            ("fe80::1", false),
            ("web 01", false),
            ("web/01", false),
            ("web-01\n", false),
        ] {
            let described = Description { hostname: hostname.to_owned(), ..description() };
            let field = described.check().map_err(|bad| bad.field);
            assert_eq!(field, if is_valid { Ok(()) } else { Err("hostname") }, "{hostname:?}");
        }
    }

    #[test]
    fn hostnames_that_differ_in_case_are_two_nodes() {
        let cluster = crate::ids::ClusterId::DEFAULT;
        let node = |hostname| crate::ids::NodeId::derive(cluster, hostname);
        assert_ne!(node("web-01"), node("WEB-01"));
    }

    #[test]
    fn groups_and_labels_may_have_the_names_that_other_systems_give_them_and_hosts_may_not() {
        let mut described = description();
        described.groups = vec!["eu/west".to_owned(), "env:prod".to_owned()];
        described.labels = [("kubernetes.io/role".to_owned(), "worker".to_owned())].into();
        assert_eq!(described.check(), Ok(()));
        for bad in ["/x", ":x", "a b", "a,b"] {
            described.groups = vec![bad.to_owned()];
            assert_eq!(described.check().map_err(|bad| bad.field), Err("groups"), "{bad}");
        }
        assert!(check_name("a/b").is_err() && check_name("a:b").is_err());
    }

    #[test]
    fn what_the_backends_of_a_node_say_of_their_params_is_checked() {
        let long = "x".repeat(limits::NODE_TEXT_BYTES + 1);
        let spoil = |spoil: &dyn Fn(&mut ParamSchema)| {
            let mut spoiled = description();
            let with_params = |backend: &Arc<BackendSchema>| !backend.actions[0].params.is_empty();
            let backend = spoiled.backends.iter_mut().find(|backend| with_params(backend)).unwrap();
            spoil(&mut Arc::make_mut(backend).actions[0].params[0]);
            spoiled.check().map_err(|bad| bad.field)
        };
        assert_eq!(spoil(&|_| {}), Ok(()));
        for text in ["a\u{1b}[2J", long.as_str()] {
            assert_eq!(spoil(&|param| param.name = text.to_owned()), Err("backends"));
            assert_eq!(spoil(&|param| param.choices = vec![text.to_owned()]), Err("backends"));
            assert_eq!(spoil(&|param| param.pattern = Some(text.to_owned())), Err("backends"));
            assert_eq!(spoil(&|param| param.name_pattern = Some(text.to_owned())), Err("backends"));
        }
    }

    #[test]
    fn what_a_node_says_of_itself_is_bounded() {
        assert_eq!(description().check(), Ok(()));
        let many = |count: usize| (0..count).map(|number| format!("n{number}"));
        let long = "x".repeat(limits::NODE_TEXT_BYTES + 1);
        let backend = |description: &mut Description, help: &str| {
            Arc::make_mut(&mut description.backends[0]).help = help.to_owned();
        };
        type Spoil<'a> = Box<dyn Fn(&mut Description) + 'a>;
        let cases: Vec<(&str, Spoil<'_>)> = vec![
            ("hostname", Box::new(|d| d.hostname = "a b".to_owned())),
            ("groups", Box::new(|d| d.groups = many(limits::GROUPS_PER_NODE + 1).collect())),
            ("groups", Box::new(|d| d.groups = vec!["a or b".to_owned()])),
            (
                "labels",
                Box::new(|d| {
                    d.labels = many(limits::LABELS_PER_NODE + 1).map(|n| (n, String::new())).collect();
                }),
            ),
            ("labels", Box::new(|d| d.labels = [("a b".to_owned(), String::new())].into())),
            ("labels", Box::new(|d| d.labels = [("a".to_owned(), long.clone())].into())),
            ("labels", Box::new(|d| d.labels = [("a".to_owned(), "x\u{1b}[2J".to_owned())].into())),
            ("labels", Box::new(|d| d.labels = [("a".to_owned(), "x\u{202e}y".to_owned())].into())),
            (
                "capabilities",
                Box::new(|d| {
                    d.capabilities = many(limits::CAPABILITIES_PER_NODE + 1).map(|n| (n, json!(1))).collect();
                }),
            ),
            ("capabilities", Box::new(|d| d.capabilities = [("a".to_owned(), json!([1]))].into())),
            ("capabilities", Box::new(|d| d.capabilities = [("a".to_owned(), json!(long))].into())),
            (
                "backends",
                Box::new(|d| d.backends = vec![d.backends[0].clone(); limits::BACKENDS_PER_NODE + 1]),
            ),
            ("backends", Box::new(|d| backend(d, &long))),
            ("backends", Box::new(|d| backend(d, "a\rb"))),
            ("slots", Box::new(|d| d.slots = u32::MAX)),
            ("version", Box::new(|d| d.version = long.clone())),
        ];
        for (number, (field, spoil)) in cases.into_iter().enumerate() {
            let mut spoiled = description();
            spoil(&mut spoiled);
            assert_eq!(spoiled.check().map_err(|bad| bad.field), Err(field), "case {number}");
        }
        assert!(check_json_bytes(limits::DESCRIPTION_BYTES).is_ok());
        assert!(check_json_bytes(limits::DESCRIPTION_BYTES + 1).is_err());
    }

    #[test]
    fn what_a_host_complains_of_is_bounded() {
        let reported = (0..100).map(|number| format!("{number} {}", "ü".repeat(10_000))).collect();
        let kept = bounded_problems(reported);
        assert_eq!(kept.len(), limits::PROBLEMS_PER_NODE);
        assert!(kept.iter().all(|text| text.len() <= limits::PROBLEM_BYTES && text.ends_with('…')));
    }

    #[test]
    fn a_problem_is_kept_once_and_silence_is_none() {
        let reported = ["disk full", "", " ", "disk full"].map(str::to_owned).to_vec();
        assert_eq!(bounded_problems(reported), ["disk full"]);
    }
}
