//! Owns durations as people write them: `500ms`, `1.5s`, `30m`, `1h30m`, `2d`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration that is read from text and printed as text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub Duration);

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a duration; write a number and a unit: 500ms, 1.5s, 30m, 1h30m, 2d")]
pub struct NotASpan(pub String);

impl Span {
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    pub const fn is_zero(&self) -> bool {
        self.0.is_zero()
    }
}

/// Nanoseconds per unit. Longest names first: otherwise `ms` would be read as `m`.
const UNITS: [(&str, u128); 7] = [
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// The longest duration that can be written: 100 years. Every sum of times then fits into a timestamp.
const LONGEST_NS: u128 = 36_525 * 86_400_000_000_000;

impl FromStr for Span {
    type Err = NotASpan;

    fn from_str(text: &str) -> Result<Self, NotASpan> {
        let wrong = || NotASpan(text.to_owned());
        let mut rest = text.trim();
        if rest == "0" {
            return Ok(Self::default());
        }
        if rest.is_empty() {
            return Err(wrong());
        }
        let mut total_ns: u128 = 0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
            let (number, tail) = rest.split_at(digits);
            let (unit, unit_ns) = UNITS.iter().find(|(unit, _)| tail.starts_with(unit)).ok_or_else(wrong)?;
            total_ns = total_ns.checked_add(scaled(number, *unit_ns).ok_or_else(wrong)?).ok_or_else(wrong)?;
            rest = tail[unit.len()..].trim_start();
        }
        if total_ns > LONGEST_NS {
            return Err(wrong());
        }
        let seconds = u64::try_from(total_ns / 1_000_000_000).map_err(|_| wrong())?;
        let nanos = u32::try_from(total_ns % 1_000_000_000).map_err(|_| wrong())?;
        Ok(Self(Duration::new(seconds, nanos)))
    }
}

/// Returns a decimal number of units, such as `1.5`, in nanoseconds, without floating point.
fn scaled(number: &str, unit_ns: u128) -> Option<u128> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || whole.len() > 18 || part.len() > 9 || part.contains('.') {
        return None;
    }
    let mut total = whole.parse::<u128>().ok()?.checked_mul(unit_ns)?;
    if !part.is_empty() {
        total += part.parse::<u128>().ok()? * unit_ns / 10_u128.pow(u32::try_from(part.len()).ok()?);
    }
    Some(total)
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let nanos = self.0.subsec_nanos();
        if nanos == 0 && seconds > 0 {
            for (unit, size) in [("d", 86_400), ("h", 3_600), ("m", 60)] {
                if seconds.is_multiple_of(size) {
                    return write!(f, "{}{unit}", seconds / size);
                }
            }
            if seconds > 60 {
                let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
                for (value, unit) in [(hours, "h"), (minutes, "m"), (rest, "s")] {
                    if value > 0 {
                        write!(f, "{value}{unit}")?;
                    }
                }
                return Ok(());
            }
            return write!(f, "{seconds}s");
        }
        if seconds == 0 {
            return match nanos {
                0 => f.write_str("0s"),
                n if n < 1_000_000 => write!(f, "{}us", n / 1_000),
                n if n % 1_000_000 == 0 || n >= 100_000_000 => write!(f, "{}ms", n / 1_000_000),
                n => write!(f, "{}ms", trimmed(f64::from(n) / 1e6)),
            };
        }
        if seconds < 60 {
            write!(f, "{}s", trimmed(self.0.as_secs_f64()))
        } else {
            Self::from_secs(seconds).fmt(f)
        }
    }
}

/// Formats with at most three decimals and no trailing zeros, for people.
fn trimmed(value: f64) -> String {
    format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_read() {
        for (text, millis) in [
            ("500ms", 500),
            ("1.5s", 1_500),
            ("30m", 1_800_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("2d", 172_800_000),
            ("0", 0),
            ("0.25s", 250),
        ] {
            assert_eq!(text.parse::<Span>().unwrap(), Span::from_millis(millis), "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_is_refused() {
        for text in [
            "",
            " ",
            "5",
            "-5s",
            "s",
            "1.s2",
            "..5s",
            "5 parsecs",
            "1e9s",
            "99999999999999999999s",
            "200000d",
        ] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn printing_and_reading_agree() {
        for text in ["500ms", "1.5s", "30m", "1h30m5s", "2d", "0s", "250us", "61s"] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.to_string().parse::<Span>().unwrap(), span, "{text} → {span}");
        }
    }
}
