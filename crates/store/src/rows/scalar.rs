//! Owns times, counts and documents as columns. Times are whole microseconds since 1970.

use downbeat_core::backend::Params;
use jiff::Timestamp;

use super::text::Text;
use crate::port::{Error, Result};

pub(crate) fn time(micros: i64) -> Result<Timestamp> {
    Timestamp::from_microsecond(micros)
        .map_err(|_| Error::Corrupt(format!("{micros} µs is not a valid time")))
}

pub(crate) fn micros(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::as_microsecond)
}

pub(crate) fn time_opt(micros: Option<i64>) -> Result<Option<Timestamp>> {
    micros.map(time).transpose()
}

/// Converts counts and offsets to the databases' type; larger values become its maximum.
pub(crate) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(crate) fn small(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

pub(crate) fn count(value: i64) -> Result<u64> {
    u64::try_from(value).map_err(|_| Error::Corrupt(format!("{value} is not a valid count")))
}

pub(crate) fn small_count(value: i32) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::Corrupt(format!("{value} is not a valid count")))
}

pub(crate) fn parse<T: serde::de::DeserializeOwned>(what: &str, json: &str) -> Result<T> {
    serde_json::from_str(json)
        .map_err(|error| Error::Corrupt(format!("a stored {what} cannot be read: {error}")))
}

pub(crate) fn parse_opt<T: serde::de::DeserializeOwned>(
    what: &str,
    json: Option<&Text<'_>>,
) -> Result<Option<T>> {
    json.map(|json| parse(what, &json.0)).transpose()
}

pub(crate) fn json<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::Corrupt(format!("cannot write JSON: {error}")))
}

/// Returns values by name as a column; none if there are none.
pub(crate) fn params_column(params: &Params) -> Option<String> {
    let text = || serde_json::to_string(params).expect("JSON values with text for keys are JSON");
    (!params.is_empty()).then(text)
}
