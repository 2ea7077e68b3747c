//! Decides when a new kind of change may be written: when every live server can read it.
//!
//! A level is a number that rises with each release that adds a kind of change, or a value to a closed set within one
//! (a run state, a verdict). Each server publishes the level of its program with its heartbeats. Code that decides
//! compares the common level before it creates a change of a new kind; if the level is too low, it does as the release
//! before did. The journal checks again. Unknown fields need no level: readers ignore them.

/// The level of this program: it knows every kind up to this level.
pub const LEVEL: u32 = 8;

/// The level of every server from before there were levels.
pub const FIRST: u32 = 1;

/// The level that [`Definition::level`](crate::spec::Definition::level) requires for a job with a roll-out, params,
/// outputs or any other field that servers of the first level ignore.
pub const FLEET: u32 = 2;

/// The level that graph jobs require: `for_each`, limits, the cache, preferences.
pub const GRAPH: u32 = 3;

/// The level that knows deleted nodes, and problems that nodes report.
pub const NODES: u32 = 4;

/// The level that knows instances that failed for good.
pub const FINAL: u32 = 5;

/// The level that knows `cleanup_timeout`.
pub const CLEANUP: u32 = 6;

/// The level that reads contents which the store has once, by hash.
pub const CONTENTS: u32 = 6;

/// The level that completes a retry whose results were carried over only in part.
pub const CARRY: u32 = 6;

/// The level that knows clusters as records, standing tasks and debug commands.
pub const CLUSTERS: u32 = 7;

/// The level that knows stored jobs.
pub const JOBS: u32 = 8;

/// The level that knows steps that a person approves.
pub const APPROVALS: u32 = 8;

/// The level that knows rounds: runs that are retried as a whole.
pub const ROUNDS: u32 = 8;

/// The level that knows constraints of runs, actions, `overlap` and `deadline`.
pub const LIFE: u32 = 8;
/// The level that knows deliveries of messages.
pub const DELIVERIES: u32 = 8;
/// The level that knows triggers.
pub const TRIGGERS: u32 = 8;

/// Returns the level that all live servers have in common, including this one.
pub fn common(live: impl IntoIterator<Item = u32>) -> u32 {
    live.into_iter().fold(LEVEL, u32::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_level_is_that_of_the_oldest_and_never_above_our_own() {
        let cases: [(&[u32], u32); 5] =
            [(&[], LEVEL), (&[LEVEL], LEVEL), (&[LEVEL + 1], LEVEL), (&[LEVEL, 0, 8], 0), (&[9, 8], LEVEL)];
        for (live, expected) in cases {
            assert_eq!(common(live.iter().copied()), expected, "{live:?}");
        }
    }
}
