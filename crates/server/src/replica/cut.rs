//! Limits the size of one line to a replica: a few rows may be large, and a replica refuses very long lines.

use downbeat_store::Part;
use serde::Serialize;

use crate::pace::size;

/// Far below a replica's limit. A single row may be larger, but not larger than a job file and its plan.
const BYTES: usize = 4 * 1024 * 1024;

/// Returns how many of the first rows fit into one line: at least one.
pub(super) fn fitting<T: Serialize>(rows: &[T]) -> usize {
    let mut bytes = 0;
    let within = |row: &&T| {
        bytes += size(*row);
        bytes <= BYTES
    };
    rows.iter().take_while(within).count().max(1).min(rows.len())
}

/// Splits a part of a snapshot into parts that fit into one line each.
pub(super) fn cut(part: Part) -> Vec<Part> {
    match part {
        Part::Nodes(rows) => pieces(rows).map(Part::Nodes).collect(),
        Part::Runs(rows) => pieces(rows).map(Part::Runs).collect(),
        Part::Events(rows) => pieces(rows).map(Part::Events).collect(),
        // Their rows are small, and their number is limited.
        other @ (Part::Tombstones(_)
        | Part::Holds(_)
        | Part::Executions(_)
        | Part::Output(_)
        | Part::End { .. }) => vec![other],
    }
}

fn pieces<T: Serialize>(mut rows: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    std::iter::from_fn(move || {
        if rows.is_empty() {
            return None;
        }
        let later = rows.split_off(fitting(&rows));
        Some(std::mem::replace(&mut rows, later))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_what_fits_and_at_least_one() {
        let small = vec!["x".repeat(100); 10];
        assert_eq!(fitting(&small), 10);
        let large = vec!["x".repeat(BYTES / 3); 10];
        assert_eq!(fitting(&large), 2);
        let huge = vec!["x".repeat(BYTES * 2); 3];
        assert_eq!(fitting(&huge), 1);
        assert_eq!(fitting::<String>(&[]), 0);
    }

    #[test]
    fn pieces_are_all_rows_in_order() {
        let rows: Vec<String> = (0..10).map(|row| format!("{row}{}", "x".repeat(BYTES / 3))).collect();
        let cut: Vec<Vec<String>> = pieces(rows.clone()).collect();
        assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [2; 5]);
        assert_eq!(cut.concat(), rows);
    }
}
