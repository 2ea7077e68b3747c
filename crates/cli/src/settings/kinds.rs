//! Owns the types of setting values. Each is read from a config file's own types and from the text of a flag or an
//! environment variable.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use downbeat_core::Span;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::render::table::plain;

/// A number of bytes: `1MiB`, `64 KiB`, `1048576`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

const SIZE_UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
    ("", 1),
];

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("`{text}` is not a size; write a number and a unit: 512KiB, 1MiB, 2GiB");
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let (_, factor) = SIZE_UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(invalid)?;
        let number: u64 = number.parse().map_err(|_| invalid())?;
        number.checked_mul(*factor).map(Self).ok_or_else(invalid)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0 > 0 && self.0.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 1MiB")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }
            fn visit_i64<E: Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes).map(Size).map_err(|_| E::custom(format!("`{bytes}` is not a size")))
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// Reads a whole number, also from text.
pub(crate) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    struct Read;
    impl Visitor<'_> for Read {
        type Value = u32;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<u32, E> {
            text.trim().parse().map_err(|_| E::custom(format!("`{text}` is not a whole number")))
        }
        fn visit_u64<E: Error>(self, number: u64) -> Result<u32, E> {
            u32::try_from(number).map_err(|_| E::custom(format!("`{number}` is too large")))
        }
        fn visit_i64<E: Error>(self, number: i64) -> Result<u32, E> {
            u32::try_from(number)
                .map_err(|_| E::custom(format!("`{number}` is not a whole number of at least 0")))
        }
    }
    deserializer.deserialize_any(Read)
}

/// Reads a number for a key that may be absent.
pub(crate) fn some_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    number(deserializer).map(Some)
}

/// Reads a size for a key that may be absent.
pub(crate) fn some_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Size>, D::Error> {
    Size::deserialize(deserializer).map(Some)
}

/// Reads a duration. `Span`'s own reader has a less helpful error for other types than text.
pub(crate) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
    struct Read;
    impl Visitor<'_> for Read {
        type Value = Span;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration; write a number and a unit: 500ms, 30s, 5m")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Span, E> {
            text.parse().map_err(E::custom)
        }
    }
    deserializer.deserialize_any(Read)
}

/// Reads a duration for a key that may be absent.
pub(crate) fn some_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Span>, D::Error> {
    duration(deserializer).map(Some)
}

pub(crate) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    let text = text.replace("localhost:", "127.0.0.1:");
    text.parse().map_err(|_| {
        D::Error::custom(format!(
            "`{text}` is not an address to listen on; write IP:PORT, such as 0.0.0.0:4680"
        ))
    })
}

/// A list of texts: an array, or one text with commas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct List(pub(crate) Vec<String>);

impl List {
    fn split(text: &str) -> Self {
        Self(text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect())
    }
}

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = List;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of strings")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<List, E> {
                Ok(List::split(text))
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<List, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element::<String>()? {
                    list.push(item);
                }
                Ok(List(list))
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// Values by name: a table, or one text such as `disk=ssd,zone=a`. A name alone has an empty value.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Labels(pub(crate) BTreeMap<String, Value>);

impl Labels {
    /// Returns the values as text, numbers as they are written.
    pub(crate) fn texts(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(name, value)| (name.clone(), plain(value))).collect()
    }

    /// Returns the values, with numbers parsed from text: `memory_mb=4096` is the same in a flag and in a file.
    pub(crate) fn values(&self) -> BTreeMap<String, Value> {
        let value = |value: &Value| match value.as_str().map(str::parse::<serde_json::Number>) {
            Some(Ok(number)) => Value::Number(number),
            _ => value.clone(),
        };
        self.0.iter().map(|(name, given)| (name.clone(), value(given))).collect()
    }
}

/// Parses `name=value`, or a name alone.
fn parse_pair<E: Error>(pair: &str) -> Result<(String, Value), E> {
    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
    if name.trim().is_empty() {
        return Err(E::custom(format!("`{pair}` has no name; write name=value")));
    }
    Ok((name.trim().to_owned(), value.trim().into()))
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Labels;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of values by name, or a string such as disk=ssd,zone=a")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Labels, E> {
                List::split(text).0.iter().map(|pair| parse_pair(pair)).collect::<Result<_, E>>().map(Labels)
            }
            /// Reads the values of flags, which are not split at commas: `--label note=a,b` is one label.
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut pairs: A) -> Result<Labels, A::Error> {
                let mut labels = BTreeMap::new();
                while let Some(pair) = pairs.next_element::<String>()? {
                    labels.extend([parse_pair(&pair)?]);
                }
                Ok(Labels(labels))
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut pairs: A) -> Result<Labels, A::Error> {
                let mut labels = BTreeMap::new();
                while let Some((name, value)) = pairs.next_entry::<String, Value>()? {
                    if value.is_array() || value.is_object() || value.is_null() {
                        return Err(A::Error::custom(format!(
                            "`{name}` must be a string, a number, true or false"
                        )));
                    }
                    labels.insert(name, value);
                }
                Ok(Labels(labels))
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Json,
    Text,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_print_alike() {
        for (text, bytes) in
            [("1MiB", 1 << 20), ("64 KiB", 64 << 10), ("1000", 1_000), ("2kB", 2_000), ("0", 0)]
        {
            let size: Size = text.parse().unwrap();
            assert_eq!(size.0, bytes, "{text}");
            assert_eq!(size.to_string().parse::<Size>().unwrap(), size, "{text}");
        }
        for text in ["", "MiB", "1.5MiB", "-1", "1 parsec", "99999999999GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_capability_given_as_text_is_a_number_when_it_looks_like_one() {
        let labels: Labels = serde_json::from_value("gpu=nvidia,memory_mb=4096,fast".into()).unwrap();
        assert_eq!(
            serde_json::to_value(labels.values()).unwrap(),
            serde_json::json!({"fast": "", "gpu": "nvidia", "memory_mb": 4096})
        );
        assert_eq!(labels.texts()["memory_mb"], "4096");
    }
}
