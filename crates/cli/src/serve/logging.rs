//! Owns the logs: on standard error, as text or as JSON, by level or by filter.

use std::io::IsTerminal;
use std::panic;

use tracing::Level;
use tracing_subscriber::filter::{Directive, LevelFilter};
use tracing_subscriber::prelude::*;
use tracing_subscriber::{EnvFilter, fmt};

use crate::exit::{Failure, Result};
use crate::render::table::one_line;
use crate::settings::LogFormat;

/// Libraries that log every frame at `debug`; a filter can name them explicitly.
const VERBOSE: [&str; 5] = ["h2", "hyper", "hyper_util", "tonic", "tower"];

/// Starts the logs. `level` is a level, or a filter such as `info,downbeat_server=debug`.
pub(super) fn start(level: &str, format: LogFormat) -> Result {
    let filter = filter(level)?;
    let registry = tracing_subscriber::registry().with(filter);
    let started = match format {
        LogFormat::Json => {
            let json = fmt::layer().json().flatten_event(true).with_current_span(true);
            registry.with(json.with_writer(std::io::stderr)).try_init()
        }
        LogFormat::Text => {
            let colour =
                std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
            registry.with(fmt::layer().with_ansi(colour).with_writer(std::io::stderr)).try_init()
        }
    };
    started.map_err(|error| Failure::bug(format!("cannot start the logs: {error}")))?;
    if format == LogFormat::Json {
        panic::set_hook(Box::new(|panicked| {
            tracing::error!("bug: {}", one_line(&panicked.to_string()));
        }));
    }
    Ok(())
}

/// Also logs the failure that ends the process if the log is JSON: standard error then contains only JSON.
pub(super) fn log_failure(result: Result, format: LogFormat) -> Result {
    result.map_err(|failure| {
        if format != LogFormat::Json || failure.message.is_empty() || !tracing::enabled!(Level::ERROR) {
            return failure;
        }
        tracing::error!(exit_code = failure.code as u8, "{}", one_line(&failure.to_string()));
        Failure::new(failure.code, "")
    })
}

/// Returns the filter of a level. `EnvFilter` accepts any word as a target, so unknown levels are refused here.
fn filter(level: &str) -> Result<EnvFilter> {
    let wrong = |why: &str| {
        Failure::bad_input(format!(
            "bad value of `log_level`: {why}; write error, warn, info, debug, trace, or a filter such as info,downbeat_server=debug"
        ))
    };
    for part in level.split(',') {
        // The parser accepts the empty string as a level; a user meant something else.
        let is_level = !part.trim().is_empty() && part.trim().parse::<LevelFilter>().is_ok();
        if !is_level && !part.contains('=') {
            return Err(wrong(&format!("`{part}` is not a level")));
        }
    }
    let filter = EnvFilter::try_new(level).map_err(|error| wrong(&error.to_string()))?;
    Ok(quieted(level).into_iter().fold(filter, EnvFilter::add_directive))
}

/// Returns directives that keep the verbose libraries at `info` if the filter sets a lower default and does not name
/// them.
fn quieted(level: &str) -> Vec<Directive> {
    let parts = level.split(',').map(str::trim);
    let is_verbose = |part: &str| part.parse::<LevelFilter>().is_ok_and(|level| level > LevelFilter::INFO);
    if !parts.clone().any(is_verbose) {
        return Vec::new();
    }
    let named = |target: &str| {
        parts.clone().any(|part| {
            let name = part.split(['=', '[']).next().unwrap_or_default();
            name == target || name.strip_prefix(target).is_some_and(|rest| rest.starts_with("::"))
        })
    };
    let quiet = VERBOSE.iter().filter(|target| !named(target));
    quiet.map(|target| format!("{target}=info").parse().expect("a target and a level")).collect()
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

    #[test]
    fn debug_is_ours_unless_others_are_named() {
        let directives = |level| quieted(level).iter().map(ToString::to_string).collect::<Vec<_>>();
        let all = ["h2=info", "hyper=info", "hyper_util=info", "tonic=info", "tower=info"];
        assert_eq!(directives("debug"), all);
        assert_eq!(directives("TRACE,downbeat_server=warn"), all);
        assert_eq!(directives("debug,h2=trace,hyper::proto=debug"), all[2..]);
        for level in ["info", "warn", "off", "warn,downbeat_server=debug"] {
            assert_eq!(directives(level), [""; 0], "{level} must not make them log more");
        }
    }
}
