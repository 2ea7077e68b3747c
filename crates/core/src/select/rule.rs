//! Decides whether a rule matches a node. `grammar` parses rules.

use serde_json::Value;

use super::glob::Glob;
use super::token::Operator;
use crate::ids::NodeId;
use crate::node::NodeRecord;

/// A condition on nodes. A `Node` has an id if its text is one.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Rule {
    All,
    Group(Glob),
    Node { hostname: Glob, id: Option<NodeId> },
    Backend(String),
    Name(Test),
    Label { key: String, test: Option<Test> },
    Capability { key: String, test: Option<Test> },
    Not(Box<Rule>),
    And(Vec<Rule>),
    Or(Vec<Rule>),
}

/// A comparison with a value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Test {
    Equal(Literal),
    Unequal(Literal),
    Like(Glob),
    Number(Operator, f64),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Literal {
    pub(super) text: String,
    /// The value as a number, if it is one, so that `= 8` also matches `8.0`.
    pub(super) number: Option<f64>,
}

impl Rule {
    pub(super) fn matches(&self, node: &NodeRecord) -> bool {
        let description = &node.description;
        match self {
            Rule::All => true,
            Rule::Group(glob) => description.groups.iter().any(|group| glob.matches(group)),
            Rule::Node { hostname, id } => hostname.matches(&description.hostname) || *id == Some(node.id),
            Rule::Backend(name) => description.backend(name).is_some(),
            Rule::Name(test) => test.holds_for_text(Some(&description.hostname)),
            Rule::Label { key, test } => {
                let value = description.labels.get(key).map(String::as_str);
                test.as_ref().map_or(value.is_some(), |test| test.holds_for_text(value))
            }
            Rule::Capability { key, test } => {
                let value = description.capabilities.get(key);
                test.as_ref().map_or(value.is_some(), |test| test.holds_for(value))
            }
            Rule::Not(rule) => !rule.matches(node),
            Rule::And(rules) => rules.iter().all(|rule| rule.matches(node)),
            Rule::Or(rules) => rules.iter().any(|rule| rule.matches(node)),
        }
    }
}

impl Test {
    fn holds_for_text(&self, value: Option<&str>) -> bool {
        match self {
            Test::Equal(literal) => value == Some(&literal.text),
            // The exact opposite of `=`: it also matches a node without the label.
            Test::Unequal(literal) => value != Some(&literal.text),
            Test::Like(glob) => value.is_some_and(|value| glob.matches(value)),
            Test::Number(operator, right) => value
                .and_then(|value| value.trim().parse().ok())
                .is_some_and(|left: f64| compare(left, *operator, *right)),
        }
    }

    fn holds_for(&self, value: Option<&Value>) -> bool {
        match value {
            None => self.holds_for_text(None),
            Some(Value::String(text)) => self.holds_for_text(Some(text)),
            Some(Value::Number(number)) => {
                let left = number.as_f64();
                match self {
                    Test::Equal(Literal { number: Some(right), .. }) => {
                        left.is_some_and(|left| compare(left, Operator::Equal, *right))
                    }
                    Test::Unequal(Literal { number: Some(right), .. }) => {
                        left.is_none_or(|left| compare(left, Operator::Unequal, *right))
                    }
                    Test::Number(operator, right) => {
                        left.is_some_and(|left| compare(left, *operator, *right))
                    }
                    Test::Equal(_) | Test::Unequal(_) | Test::Like(_) => {
                        self.holds_for_text(Some(&number.to_string()))
                    }
                }
            }
            Some(other) => self.holds_for_text(Some(&other.to_string())),
        }
    }
}

fn compare(left: f64, operator: Operator, right: f64) -> bool {
    match operator {
        Operator::Equal => left == right,
        Operator::Unequal => left != right,
        Operator::Less => left < right,
        Operator::LessOrEqual => left <= right,
        Operator::Greater => left > right,
        Operator::GreaterOrEqual => left >= right,
        Operator::Like => false,
    }
}
