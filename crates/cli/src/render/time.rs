//! Owns how times are written: as an age where that helps, otherwise to the second in UTC.

use std::time::Duration;

use downbeat_core::Span;
use jiff::Timestamp;

/// Returns the time between `at` and `now`: `12s`, `5m`, `3h`, `2d`.
pub(crate) fn age(at: Timestamp, now: Timestamp) -> String {
    let seconds = elapsed(at, now).as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns the elapsed time; zero if the clocks disagree.
pub(crate) fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or_default()
}

const SHORTEST_SHOWN: Duration = Duration::from_micros(100);

/// Returns a duration in a short form: `950ms`, `12.3s`, `1h2m`.
pub(crate) fn short(span: Span) -> String {
    let duration = span.0;
    if duration >= Duration::from_secs(60) {
        composed(duration.as_secs())
    } else if duration >= Duration::from_secs(1) {
        let text = format!("{:.1}", duration.as_secs_f64());
        format!("{}s", text.strip_suffix(".0").unwrap_or(&text))
    } else if duration >= Duration::from_millis(10) {
        format!("{}ms", duration.as_millis())
    } else if duration < SHORTEST_SHOWN {
        "<0.1ms".to_owned()
    } else {
        format!("{:.1}ms", duration.as_secs_f64() * 1e3)
    }
}

/// Returns the two largest units: `3h5m`, `1m2s`, `2d`.
fn composed(seconds: u64) -> String {
    let units =
        [(seconds / 86_400, "d"), (seconds / 3_600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let first = units.iter().position(|(count, _)| *count > 0).unwrap_or(units.len() - 1);
    let parts = units[first..].iter().take(2).filter(|(count, _)| *count > 0);
    parts.map(|(count, unit)| format!("{count}{unit}")).collect()
}

/// Returns the time to the second, in UTC.
pub(crate) fn second(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns the time of the day to the second, in UTC.
pub(crate) fn time_of_day(at: Timestamp) -> String {
    at.strftime("%H:%M:%SZ").to_string()
}

/// Returns the time to the millisecond, in UTC.
pub(crate) fn millisecond(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_at_most_two_units() {
        assert_eq!(short(Span(Duration::from_micros(99))), "<0.1ms");
        assert_eq!(short(Span(Duration::from_micros(100))), "0.1ms");
        for (millis, text) in [
            (0, "<0.1ms"),
            (2, "2.0ms"),
            (950, "950ms"),
            (1_000, "1s"),
            (12_340, "12.3s"),
            (60_000, "1m"),
            (62_000, "1m2s"),
            (3_723_000, "1h2m"),
            (86_405_000, "1d"),
            (97_200_000, "1d3h"),
        ] {
            assert_eq!(short(Span::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_clock_that_is_ahead_shows_no_negative_age() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(age(now + jiff::SignedDuration::from_secs(5), now), "0s");
    }
}
