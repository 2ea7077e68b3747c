//! Reads the kernel's figures of a process under test: CPU time, memory, open files.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;

use downbeat_agent::raise_open_files;

use super::server::cannot;
use crate::failure::{Failure, Result};

/// Files that a process opens besides its connections: the store, logs, the runtime's own.
const OTHER_FILES: u64 = 200;

/// Returns a command for a program; this one if absent.
pub(super) fn program(path: Option<&Path>) -> Result<Command> {
    path.map_or_else(this_program, |path| Ok(Command::new(path)))
}

pub(super) fn this_program() -> Result<Command> {
    let program = std::env::current_exe().map_err(|error| cannot("find this program", &error))?;
    Ok(Command::new(program))
}

/// Returns the arguments with which a server or an agent stops when this process ends, however it ends.
pub(super) fn stop_with_this() -> [String; 2] {
    ["--stop-with-parent".to_owned(), std::process::id().to_string()]
}

/// Opens a file for the errors of a process; they are appended.
pub(super) fn log_file(path: PathBuf) -> Result<File> {
    OpenOptions::new().create(true).append(true).open(path).map_err(|error| cannot("log", &error))
}

/// Returns the user and system time of this process, which contains the agents.
pub(super) fn own_cpu_seconds() -> f64 {
    cpu_seconds(std::process::id())
}

/// Returns the user and system time of a living process.
pub(super) fn cpu_seconds(process: u32) -> f64 {
    // Fields 14 and 15 of the whole line.
    seconds(process, 11)
}

/// Returns the time of the processes that it started and waited for.
pub(super) fn children_cpu_seconds(process: u32) -> f64 {
    seconds(process, 13)
}

/// Returns two fields of a process's statistics, counted after its name, which may contain blanks.
fn seconds(process: u32, first: usize) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields = rest.split_whitespace().skip(first).take(2);
    let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// Returns the memory of a living process.
pub(super) fn rss_bytes(process: u32) -> u64 {
    memory(process, "VmRSS:")
}

/// Returns the most memory that a living process has had.
pub(super) fn peak_rss_bytes(process: u32) -> u64 {
    memory(process, "VmHWM:")
}

fn memory(process: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Raises the limit of open files of this process and its children; fails if this many connections exceed it.
pub(super) fn make_room_for(connections: u32) -> Result<()> {
    let needed = u64::from(connections) + OTHER_FILES;
    let hard = raise_open_files()
        .map_err(|error| Failure::bug(format!("cannot raise the limit of open files: {error}")))?;
    if hard < needed {
        return Err(Failure::bad_input(format!(
            "{connections} connections need {needed} open files, and a process may have {hard}: raise `ulimit -Hn`, \
             or use fewer nodes"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_time_and_memory() {
        let own = std::process::id();
        assert!(rss_bytes(own) > 100_000 && peak_rss_bytes(own) > 100_000);
        while cpu_seconds(own) == 0.0 {}
        assert_eq!((cpu_seconds(u32::MAX), rss_bytes(u32::MAX)), (0.0, 0));
    }

    #[test]
    fn more_connections_than_the_system_allows_are_refused_before_they_are_made() {
        make_room_for(10).unwrap();
        if raise_open_files().unwrap() < u64::from(u32::MAX) {
            let text = make_room_for(u32::MAX).unwrap_err().message;
            assert!(text.contains("ulimit"), "{text}");
        }
    }
}
