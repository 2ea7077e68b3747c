//! Owns when a new kind of change may be written: when every server that lives can read it.
//!
//! A level is a number that rises with each release that adds a kind of change, or a value to a closed set within one
//! (a run state, a verdict). Each server publishes the level of its program beside its sign of life. Whoever decides
//! asks [`allows`] before it makes a change of a new kind, and does as the release before did when the answer is no; the
//! journal asks again. Unknown fields need no level: readers pass over them.

use crate::change::Change;

/// The level of this program: it knows every kind up to it.
pub const LEVEL: u32 = 4;

/// What every server before there were levels knows.
pub const FIRST: u32 = 1;

/// What [`Definition::level`](crate::spec::Definition::level) asks for when a job has a roll-out, params, outputs or any
/// other field that servers of the first level pass over.
pub const FLEET: u32 = 2;

/// The same for what graph jobs brought: `for_each`, limits, results that are used again, preferences.
pub const GRAPH: u32 = 3;

/// Nodes that are deleted, and that say what is wrong with them.
pub const NODES: u32 = 4;

/// The level that all living servers have in common, this one among them.
pub fn common(living: impl IntoIterator<Item = u32>) -> u32 {
    living.into_iter().fold(LEVEL, u32::min)
}

/// Whether a change may be written while `common` is what all living servers know.
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
        for (living, expected) in cases {
            assert_eq!(common(living.iter().copied()), expected, "{living:?}");
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
            19,
            "a new kind raises LEVEL, unless it came with the level's first release"
        );
    }
}
