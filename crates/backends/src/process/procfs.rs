//! Reads `/proc`: which processes there are, whose children, with which environment. Ends none.

use std::fs;

/// A process that is not yet, or no longer only, an entry waiting for its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    /// In ticks since boot. With the pid it is an identity: pids are used again, the pair is not.
    pub(super) started: u64,
    pub(super) zombie: bool,
}

/// Every process that this agent may see, zombies included.
pub(super) fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter_map(one).collect()
}

pub(super) fn one(pid: i32) -> Option<Process> {
    parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name stands in parentheses and may itself hold blanks and parentheses: fields are counted after the last one.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        zombie: matches!(*fields.first()?, "Z" | "X"),
    })
}

/// Whether the environment that the process was started with holds exactly this `NAME=value`.
pub(super) fn carries(pid: i32, marker: &str) -> bool {
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == marker.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 3 5 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        assert_eq!(
            parse(7, stat),
            Some(Process { pid: 7, parent: 3, group: 5, started: 4242, zombie: false })
        );
    }

    #[test]
    fn this_process_is_listed() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(all().iter().any(|process| process.pid == own && !process.zombie));
    }
}
