//! Owns the matrix of a run: a letter for each step on each node, for overviews of large runs.

use downbeat_core::execution::Status;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The state of each step on each node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Matrix {
    /// The matrix contains all events up to this number, and maybe later ones.
    pub seq: u64,
    /// The number of nodes that the run has, and that `selector` matches.
    pub total: u64,
    /// Hostnames: one for each row. There may be fewer rows than `limit`, and more after them, if the run has many steps.
    pub nodes: Vec<String>,
    /// The names of the tasks: one for each column.
    pub steps: Vec<String>,
    /// One text for each node, with one letter for each step: `p` pending, `l` leased, `r` running, `s` succeeded, `u`
    /// reused, `f` failed, `k` skipped, `c` cancelled, `x` lost, `.` none. If a node has several items of a step, the
    /// letter is that of the most urgent one: failed, then lost, cancelled, running, leased, pending.
    pub cells: Vec<String>,
    /// With `times=1`: for each node, for each step, the start and the end in milliseconds after `created_at` of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<Vec<Vec<[Option<i64>; 2]>>>,
}

impl Matrix {
    /// The cell of a step without a result on a node.
    pub const NONE: char = '.';

    /// Returns the letter of an instance.
    pub fn letter(status: Status, is_reused: bool) -> char {
        match status {
            Status::Pending => 'p',
            Status::Leased => 'l',
            Status::Running => 'r',
            Status::Succeeded if is_reused => 'u',
            Status::Succeeded => 's',
            Status::Failed => 'f',
            Status::Skipped => 'k',
            Status::Cancelled => 'c',
            Status::Lost => 'x',
        }
    }

    /// Returns how urgent a letter is: the lowest number is shown.
    pub fn urgency(letter: char) -> usize {
        const ORDER: &str = "fxcrlpsuk.";
        ORDER.find(letter).unwrap_or(ORDER.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_a_letter_of_its_own_and_a_place_among_the_urgent_ones() {
        let mut letters: Vec<char> = Status::ALL.map(|status| Matrix::letter(status, false)).to_vec();
        letters.extend([Matrix::letter(Status::Succeeded, true), Matrix::NONE]);
        letters.sort_by_key(|letter| Matrix::urgency(*letter));
        assert_eq!(letters.into_iter().collect::<String>(), "fxcrlpsuk.");
    }
}
