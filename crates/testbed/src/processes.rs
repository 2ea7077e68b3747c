//! Finds processes of this machine: whether they run, their parent, and their execution.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns a field of `/proc/PID/stat` that follows the name, which may contain blanks.
fn stat(pid: i32, field: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(field).map(str::to_owned)
}

/// Signals a process that may be gone.
pub fn signal(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}

/// Returns true if a process exists and is not a zombie.
pub fn is_alive(pid: i32) -> bool {
    stat(pid, 0).is_some_and(|state| state != "Z")
}

/// Returns true if a process is stopped by a signal.
pub fn is_frozen(pid: i32) -> bool {
    stat(pid, 0).is_some_and(|state| state == "T")
}

pub fn children(parent: i32) -> Vec<i32> {
    let parent = parent.to_string();
    all().filter(|pid| stat(*pid, 1).is_some_and(|of| of == parent)).collect()
}

/// Returns the running processes that have a variable, each with the result of `wanted` for its variables.
fn with_variables<T>(variable: &str, wanted: impl Fn(&[&str]) -> Option<T>) -> Vec<(i32, T)> {
    let mut found = Vec::new();
    for pid in all() {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment);
        let variables: Vec<&str> = environment.split('\0').collect();
        if variables.contains(&variable) && is_alive(pid) {
            found.extend(wanted(&variables).map(|value| (pid, value)));
        }
    }
    found
}

/// Returns how many processes belong to this attempt: `EXECUTION.ATTEMPT`.
pub fn of_attempt(name: &str) -> usize {
    with_variables(&format!("DOWNBEAT_EXECUTION={name}"), |_| Some(())).len()
}

/// Returns the processes that belong to attempts of a site: each with its number and `EXECUTION.ATTEMPT`.
pub fn of_executions(site: &str) -> Vec<(i32, String)> {
    with_variables(&format!("DOWNBEAT_TEST_SITE={site}"), |variables| {
        variables.iter().find_map(|variable| variable.strip_prefix("DOWNBEAT_EXECUTION=")).map(str::to_owned)
    })
}
