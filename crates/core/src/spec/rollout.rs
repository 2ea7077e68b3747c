//! Owns a job's roll-out as it is written: the size of its waves, and how many nodes may fail.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::limit::NumberOrText;
use crate::span::Span;

/// Waves of nodes: each wave runs the whole list before the next begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    pub batch: Batch,
    /// The pause between the end of a wave and the start of the next.
    #[serde(default, skip_serializing_if = "Span::is_zero")]
    pub pause: Span,
    /// The number of nodes that may fail, over the whole roll-out.
    #[serde(default, skip_serializing_if = "Amount::is_zero")]
    pub max_failures: Amount,
}

/// The sizes of the waves: one size for all, or a list whose last size repeats until no nodes are left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Batch {
    Alike(Amount),
    Each(Vec<Amount>),
}

/// A number of nodes, or a percentage of all nodes (`25%`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Count(u32),
    Percent(u8),
}

impl Default for Amount {
    fn default() -> Self {
        Amount::Count(0)
    }
}

/// The reason why a text is not a valid amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a number of nodes; write a number such as 10, or a percentage from 0% to 100%")]
pub struct NotAnAmount(pub String);

impl Amount {
    pub fn is_zero(&self) -> bool {
        matches!(self, Amount::Count(0) | Amount::Percent(0))
    }

    /// Returns the amount for this many nodes. A percentage is rounded down, so that it is never exceeded.
    pub fn of(self, nodes: u32) -> u32 {
        match self {
            Amount::Count(count) => count,
            Amount::Percent(percent) => {
                let part = u64::from(nodes) * u64::from(percent) / 100;
                u32::try_from(part).expect("a part is not more than the whole")
            }
        }
    }
}

impl Batch {
    /// Returns the end of each wave for this many nodes. A wave has at least one node.
    pub fn waves(&self, nodes: u32) -> Vec<u32> {
        let amounts = match self {
            Batch::Alike(amount) => std::slice::from_ref(amount),
            Batch::Each(amounts) => amounts,
        };
        let mut ends = Vec::new();
        let mut done = 0;
        while done < nodes {
            let amount = amounts.get(ends.len()).or(amounts.last()).copied().unwrap_or(Amount::Percent(100));
            done = nodes.min(done.saturating_add(amount.of(nodes).max(1)));
            ends.push(done);
        }
        ends
    }
}

impl FromStr for Amount {
    type Err = NotAnAmount;

    fn from_str(text: &str) -> Result<Self, NotAnAmount> {
        let wrong = || NotAnAmount(text.to_owned());
        match text.trim().strip_suffix('%') {
            Some(percent) => {
                let percent = percent.trim_end().parse().ok().filter(|percent| *percent <= 100);
                percent.map(Amount::Percent).ok_or_else(wrong)
            }
            None => text.trim().parse().map(Amount::Count).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Count(count) => write!(f, "{count}"),
            Amount::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Amount::Count(count) => serializer.serialize_u32(*count),
            Amount::Percent(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match NumberOrText::deserialize(deserializer)? {
            NumberOrText::Number(count) => Ok(Amount::Count(count)),
            NumberOrText::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// Returns the text about a roll-out that exceeded its budget: `4 nodes failed, 2 were allowed`.
pub fn budget_text(failed: u32, budget: u32) -> String {
    let failed = if failed == 1 { "1 node".to_owned() } else { format!("{failed} nodes") };
    let allowed = match budget {
        0 => "none was".to_owned(),
        1 => "1 was".to_owned(),
        budget => format!("{budget} were"),
    };
    format!("{failed} failed, {allowed} allowed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_hold_what_is_written_and_the_last_amount_goes_on() {
        use Amount::{Count, Percent};
        let cases: [(Batch, u32, &[u32]); 8] = [
            (Batch::Alike(Count(10)), 25, &[10, 20, 25]),
            (Batch::Alike(Percent(25)), 10, &[2, 4, 6, 8, 10]),
            (Batch::Alike(Percent(25)), 100, &[25, 50, 75, 100]),
            (Batch::Alike(Percent(1)), 3, &[1, 2, 3]),
            (Batch::Each(vec![Count(1), Percent(10), Percent(50), Percent(100)]), 100, &[1, 11, 61, 100]),
            (Batch::Each(vec![Count(1), Count(2)]), 6, &[1, 3, 5, 6]),
            (Batch::Alike(Count(1_000)), 3, &[3]),
            (Batch::Alike(Count(5)), 0, &[]),
        ];
        for (batch, nodes, expected) in cases {
            assert_eq!(batch.waves(nodes), expected, "{batch:?} of {nodes}");
        }
    }

    #[test]
    fn amounts_read_and_print_alike() {
        for text in ["10", "25%", "0", "100%"] {
            assert_eq!(text.parse::<Amount>().unwrap().to_string(), text);
        }
        for text in ["", "%", "101%", "-1", "1.5", "ten", "10 nodes"] {
            assert!(text.parse::<Amount>().is_err(), "{text}");
        }
        let batch: Batch = serde_json::from_str(r#"[1, "10%"]"#).unwrap();
        assert_eq!(serde_json::to_string(&batch).unwrap(), r#"[1,"10%"]"#);
    }
}
