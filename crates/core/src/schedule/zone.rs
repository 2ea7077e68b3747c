//! Owns time zones: their names, and the moments of local times when clocks change. The rules of all zones are part of
//! the program, so that servers with different systems agree.

use std::fmt;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

use crate::nearest::nearest;
use crate::shown::shown;

/// A time zone of the IANA database.
#[derive(Clone, PartialEq, Eq)]
pub struct Zone(TimeZone);

/// A name that no time zone has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time zone `{name}` is unknown; {advice}")]
pub struct UnknownZone {
    name: String,
    advice: String,
}

impl Default for Zone {
    fn default() -> Self {
        Self(TimeZone::UTC)
    }
}

impl Zone {
    /// Finds a zone by its name, in any case.
    pub fn named(name: &str) -> Result<Self, UnknownZone> {
        let zones = TimeZoneDatabase::bundled();
        match zones.get(name) {
            Ok(zone) if zone.iana_name().is_some_and(|name| name != "Etc/Unknown") => Ok(Self(zone)),
            _ => Err(UnknownZone { name: shown(name), advice: advice(name) }),
        }
    }

    /// Returns the names of all zones.
    pub fn names() -> Vec<String> {
        TimeZoneDatabase::bundled().available().map(|name| name.as_str().to_owned()).collect()
    }

    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// Returns the time of day in this zone.
    pub fn local(&self, at: Timestamp) -> DateTime {
        self.0.to_datetime(at)
    }

    /// Returns the moment with the offset of this zone, by RFC 3339.
    pub fn shown(&self, at: Timestamp) -> String {
        at.to_zoned(self.0.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    }

    /// Returns the moment of a local time. For a time that clocks skip, it is the first moment after the gap; for a time
    /// that clocks repeat, the first of the two. Later local times never have earlier moments.
    pub(super) fn moment(&self, local: DateTime) -> Option<Timestamp> {
        match self.0.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(local).ok(),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(local).ok(),
            AmbiguousOffset::Gap { after, .. } => {
                // The offset after the gap places the time before it.
                let earlier = after.to_timestamp(local).ok()?;
                self.0
                    .following(earlier)
                    .find(|change| change.offset() == after)
                    .map(|change| change.timestamp())
            }
        }
    }

    /// Returns the first moment of a day.
    pub(super) fn start_of(&self, date: Date) -> Option<Timestamp> {
        self.moment(date.to_datetime(jiff::civil::Time::midnight()))
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn advice(name: &str) -> String {
    const EXAMPLE: &str = "write a name such as UTC or Europe/Berlin";
    let names = Zone::names();
    // People also write only the city.
    let of_city = |city: &str| {
        let city = city.replace(' ', "_");
        names.iter().find(|name| name.rsplit('/').next().is_some_and(|last| last.eq_ignore_ascii_case(&city)))
    };
    let meant = of_city(name).map(String::as_str).or_else(|| nearest(name, names.iter().map(String::as_str)));
    meant.map_or_else(|| EXAMPLE.to_owned(), |meant| format!("did you mean `{meant}`?"))
}
