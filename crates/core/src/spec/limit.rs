//! Owns the text form of a limit: `4` at the same time, `100/1m` within a time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::definition::Limit;
use crate::limits;
use crate::span::Span;

/// The error message for an invalid limit.
pub(super) const WANTED: &str = "a number of executions at the same time (4), or a rate (100/1m)";

impl Limit {
    /// Returns the maximum number, at once or within the time.
    pub fn most(&self) -> u32 {
        match self {
            Limit::AtOnce(most) | Limit::Rate(most, _) => *most,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::AtOnce(most) => write!(f, "{most}"),
            Limit::Rate(most, per) => write!(f, "{most}/{per}"),
        }
    }
}

/// A stored value that people write as a number or as a text.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum NumberOrText {
    Number(u32),
    Text(String),
}

/// Parses a limit. The error names the valid forms.
impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || WANTED.to_owned();
        let (most, per) = match text.split_once('/') {
            Some((most, per)) => (most, Some(per.trim())),
            None => (text, None),
        };
        let most: u32 = most.trim().parse().map_err(|_| wrong())?;
        if !(1..=limits::LIMIT_MOST).contains(&most) {
            return Err(format!("from 1 to {} executions", limits::LIMIT_MOST));
        }
        let Some(per) = per else { return Ok(Limit::AtOnce(most)) };
        // `5/s` is common, so a unit without a number means one of it.
        let per =
            if per.starts_with(|c: char| c.is_ascii_digit()) { per.to_owned() } else { format!("1{per}") };
        let per: Span = per.parse().map_err(|_| wrong())?;
        let longest = Span::from_secs(limits::RATE_MOST_S);
        if per < Span::from_millis(1) || per > longest {
            return Err(format!("a rate with a period from 1ms to {longest}"));
        }
        Ok(Limit::Rate(most, per))
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Limit::AtOnce(most) => serializer.serialize_u32(*most),
            Limit::Rate(..) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match NumberOrText::deserialize(deserializer)? {
            NumberOrText::Number(most) => Ok(Limit::AtOnce(most)),
            NumberOrText::Text(text) => {
                text.parse().map_err(|wanted| serde::de::Error::custom(format!("expected {wanted}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_and_written() {
        let minute = Span::from_secs(60);
        for (text, limit, written) in [
            ("4", Limit::AtOnce(4), "4"),
            ("100/1m", Limit::Rate(100, minute), "100/1m"),
            ("5 / m", Limit::Rate(5, minute), "5/1m"),
            ("1/s", Limit::Rate(1, Span::from_secs(1)), "1/1s"),
        ] {
            assert_eq!(text.parse(), Ok(limit), "{text}");
            assert_eq!(limit.to_string(), written);
            let json = serde_json::to_string(&limit).unwrap();
            assert_eq!(serde_json::from_str::<Limit>(&json).unwrap(), limit, "{json}");
        }
    }

    #[test]
    fn an_invalid_limit_is_refused() {
        for text in
            ["", "0", "-1", "many", "4/", "/1m", "4/0s", "4/1y", "4/1m/2", "1.5", "100000000", "1/400d"]
        {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
    }
}
