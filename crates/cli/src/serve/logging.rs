//! Owns the logs: on standard error, as text or as JSON, by level or by filter.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

use crate::exit::Failure;
use crate::settings::LogFormat;

/// Starts the logs. `level` is a level, or a filter such as `info,downbeat_server=debug`.
pub(super) fn start(level: &str, format: LogFormat) -> Result<(), Failure> {
    let filter = filter(level)?;
    let registry = tracing_subscriber::registry().with(filter);
    let started = match format {
        LogFormat::Json => registry
            .with(
                fmt::layer().json().flatten_event(true).with_current_span(true).with_writer(std::io::stderr),
            )
            .try_init(),
        LogFormat::Text => {
            let colour =
                std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
            registry.with(fmt::layer().with_ansi(colour).with_writer(std::io::stderr)).try_init()
        }
    };
    started.map_err(|error| Failure::bug(format!("cannot start the logs: {error}")))
}

/// A filter takes any word as a target's name, so a level that is none has to be found here.
fn filter(level: &str) -> Result<EnvFilter, Failure> {
    let wrong = |why: &str| {
        Failure::bad_input(format!(
            "bad value of `log_level`: {why}; write error, warn, info, debug, trace, or a filter such as info,downbeat_server=debug"
        ))
    };
    for part in level.split(',') {
        // The empty text is a level to the parser, and a mistake to everybody else.
        let is_level =
            !part.trim().is_empty() && part.trim().parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
        if !is_level && !part.contains('=') {
            return Err(wrong(&format!("`{part}` is no level")));
        }
    }
    EnvFilter::try_new(level).map_err(|error| wrong(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters_are_taken_and_typos_are_not() {
        for level in ["info", "off", "warn,downbeat_server=debug", "INFO"] {
            assert!(filter(level).is_ok(), "{level}");
        }
        for level in ["", "inof", "verbose", "info,debugg", "downbeat=loud"] {
            assert!(filter(level).is_err(), "{level}");
        }
    }
}
