//! Bounds what an agent says is wrong on its host.

use crate::limits;
use crate::shown::cut;

/// As much of it as is kept: so many texts of so many bytes, each once, without those that say nothing.
pub fn bounded_problems(said: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for mut text in said {
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
        let said = (0..100).map(|number| format!("{number} {}", "ü".repeat(10_000))).collect();
        let kept = bounded_problems(said);
        assert_eq!(kept.len(), limits::PROBLEMS_PER_NODE);
        assert!(kept.iter().all(|text| text.len() <= limits::PROBLEM_BYTES && text.ends_with('…')));
    }

    #[test]
    fn a_problem_is_kept_once_and_silence_is_none() {
        let said = ["disk full", "", " ", "disk full"].map(str::to_owned).to_vec();
        assert_eq!(bounded_problems(said), ["disk full"]);
    }
}
