//! Reads `/proc`: which processes there are, whose children, with which environment. Ends none.

use std::fs::{self, File};
use std::io::Read;

/// More than `/proc/PID/stat` ever has: a short name and some fifty numbers.
const STAT_BYTES: usize = 2048;
/// Places of fields after the name.
const GROUP: usize = 2;
const STARTED: usize = 19;

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
    // The kernel hands over all of it at once: asking again costs a short command's start as much as the answer.
    let mut stat = [0; STAT_BYTES];
    let length = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut stat).ok()?;
    parse(pid, &stat[..length])
}

/// The name stands in parentheses and may itself hold blanks, parentheses and any bytes: fields are counted after the
/// last one.
fn parse(pid: i32, stat: &[u8]) -> Option<Process> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = str::from_utf8(&stat[name_end + 1..]).ok()?.split_ascii_whitespace();
    Some(Process {
        pid,
        zombie: matches!(fields.next()?, "Z" | "X"),
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
        started: fields.nth(STARTED - GROUP - 1)?.parse().ok()?,
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
    fn a_name_with_parentheses_or_strange_bytes_does_not_shift_the_fields() {
        let stat = b"7 (a) b (\xff) S 3 5 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
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
