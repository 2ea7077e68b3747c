//! Decides when a new kind of change may be written: when every live server can read it.
//!
//! A level is a number that rises with each release that adds a kind of change, or a value to a closed set within one
//! (a run state, a verdict). Each server publishes the level of its program with its heartbeats. Code that decides
//! calls [`allows`] before it creates a change of a new kind; if the result is false, it does as the release before did.
//! The journal checks again. Unknown fields need no level: readers ignore them.

use crate::change::Change;

/// The level of this program: it knows every kind up to this level.
pub const LEVEL: u32 = 5;

/// The level of every server from before there were levels.
pub const FIRST: u32 = 1;

/// The level that [`Definition::level`](crate::spec::Definition::level) requires for a job with a roll-out, params,
/// outputs or any other field that servers of the first level ignore.
pub const FLEET: u32 = 2;

/// The level that graph jobs require: `for_each`, limits, the cache, preferences.
pub const GRAPH: u32 = 3;

/// The level that knows deleted nodes, and problems that nodes report.
pub const NODES: u32 = 4;

/// The level that knows [`Change::InstanceFailed`].
pub const FINAL: u32 = 5;

/// Returns the level that all live servers have in common, including this one.
pub fn common(live: impl IntoIterator<Item = u32>) -> u32 {
    live.into_iter().fold(LEVEL, u32::min)
}

/// Returns whether a change may be written while all live servers have the level `common`.
pub fn allows(common: u32, change: &Change) -> bool {
    change.level() <= common.min(LEVEL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timestamp;
    use crate::ids::RunId;

    fn known() -> Change {
        let run = RunId::from("run".to_owned());
        Change::RunCancelRequested { run, by: "ada".to_owned(), at: Timestamp::UNIX_EPOCH }
    }

    fn unknown() -> Change {
        Change::Unknown { name: "job_stored".to_owned(), run: None, at: Timestamp::UNIX_EPOCH }
    }

    #[test]
    fn the_common_level_is_that_of_the_oldest_and_never_above_our_own() {
        let cases: [(&[u32], u32); 5] =
            [(&[], LEVEL), (&[LEVEL], LEVEL), (&[LEVEL + 1], LEVEL), (&[LEVEL, 0, 7], 0), (&[9, 8], LEVEL)];
        for (live, expected) in cases {
            assert_eq!(common(live.iter().copied()), expected, "{live:?}");
        }
    }

    #[test]
    fn a_kind_is_written_only_when_all_know_it() {
        assert!(allows(FIRST, &known()), "kinds of the first level are always known");
        assert!(!allows(0, &known()), "an older server lives");
        assert!(
            !allows(LEVEL, &unknown()) && !allows(u32::MAX, &unknown()),
            "nobody here knows what it means"
        );
    }

    #[test]
    fn no_kind_is_above_the_level_of_the_program() {
        assert!(known().level() <= LEVEL);
        assert_eq!(
            Change::KINDS.len(),
            20,
            "a new kind raises LEVEL, unless it came with the level's first release"
        );
    }
}
