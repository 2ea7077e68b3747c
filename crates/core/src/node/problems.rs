//! Bounds the problems that an agent reports about its host.

use crate::limits;
use crate::shown::cut;

/// Returns the problems to keep: a bounded number of bounded texts, without duplicates and empty ones.
pub fn bounded_problems(reported: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for mut text in reported {
        cut(&mut text, limits::PROBLEM_BYTES);
        if kept.len() < limits::PROBLEMS_PER_NODE && !text.trim().is_empty() && !kept.contains(&text) {
            kept.push(text);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_complains_of_is_bounded() {
        let reported = (0..100).map(|number| format!("{number} {}", "ü".repeat(10_000))).collect();
        let kept = bounded_problems(reported);
        assert_eq!(kept.len(), limits::PROBLEMS_PER_NODE);
        assert!(kept.iter().all(|text| text.len() <= limits::PROBLEM_BYTES && text.ends_with('…')));
    }

    #[test]
    fn a_problem_is_kept_once_and_silence_is_none() {
        let reported = ["disk full", "", " ", "disk full"].map(str::to_owned).to_vec();
        assert_eq!(bounded_problems(reported), ["disk full"]);
    }
}
