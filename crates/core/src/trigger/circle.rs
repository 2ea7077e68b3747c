//! Finds jobs that would start each other in a circle.

use std::collections::{BTreeMap, VecDeque};

/// Returns the shortest circle through a job, in the order in which the jobs would start each other: the job is the first
/// and the last one. `sources` returns the jobs that start a job.
pub fn circle(job: &str, sources: impl Fn(&str) -> Vec<String>) -> Option<Vec<String>> {
    // For each job that starts `job`, at once or through others: the job that it starts on the way.
    let mut next: BTreeMap<String, String> = BTreeMap::new();
    let mut open = VecDeque::from([job.to_owned()]);
    while let Some(started) = open.pop_front() {
        for source in sources(&started) {
            if source == job {
                let rest = std::iter::successors(Some(started), |one| next.get(one).cloned());
                return Some(std::iter::once(source).chain(rest).collect());
            }
            if !next.contains_key(&source) {
                next.insert(source.clone(), started.clone());
                open.push_back(source);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_circle_is_found_whatever_else_there_is() {
        // Each edge is a job, and one that it starts.
        type Edges = [(&'static str, &'static str)];
        let cases: [(&Edges, Option<&str>); 8] = [
            (&[], None),
            (&[("b", "a"), ("c", "b")], None),
            (&[("a", "a")], Some("a → a")),
            (&[("a", "b"), ("b", "a")], Some("a → b → a")),
            (&[("a", "b"), ("b", "c"), ("c", "a"), ("x", "a")], Some("a → b → c → a")),
            // A circle of others.
            (&[("b", "a"), ("b", "c"), ("c", "b")], None),
            (&[("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("b", "d")], Some("a → b → d → a")),
            (&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")], None),
        ];
        for (edges, expected) in cases {
            let sources = |job: &str| -> Vec<String> {
                edges
                    .iter()
                    .filter(|(_, started)| *started == job)
                    .map(|(source, _)| (*source).to_owned())
                    .collect()
            };
            let found = circle("a", sources).map(|circle| circle.join(" → "));
            assert_eq!(found.as_deref(), expected, "{edges:?}");
        }
    }
}
