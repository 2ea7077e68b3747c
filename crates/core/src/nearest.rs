//! Guesses the word that a mistyped word was meant to be, and writes the advice.

/// Longer words are not typing errors, and would take time to compare.
const LONGEST_COMPARED: usize = 64;

/// Returns the candidate that is one or two typing errors away, or else the only one that contains the word as a part:
/// for `retries` it returns `max_retries`.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let candidates: Vec<&str> = candidates.into_iter().collect();
    let allowed = (word.chars().take(LONGEST_COMPARED + 1).count() / 3).max(1);
    nearest_within(word, candidates.iter().copied(), allowed).or_else(|| {
        let mut with_part = candidates.iter().copied().filter(|candidate| has_part(candidate, word));
        with_part.next().filter(|_| with_part.next().is_none())
    })
}

/// Returns the candidate that is at most this many edits away.
pub fn nearest_within<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    allowed: usize,
) -> Option<&'a str> {
    let word: Vec<char> = lowered(word)?;
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let letters = lowered(candidate)?;
            (letters.len().abs_diff(word.len()) <= allowed).then(|| (distance(&word, &letters), candidate))
        })
        .filter(|(distance, candidate)| *distance <= allowed && *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns whether a name such as `max_retries` has `retries` as one of its parts. Short words are parts of too many names.
fn has_part(name: &str, word: &str) -> bool {
    const SHORTEST_PART: usize = 4;
    word.len() >= SHORTEST_PART && name != word && name.split('_').any(|part| part == word)
}

/// Returns a sentence with the valid words: all of them if they are few, otherwise only the likely ones. A long list
/// does not help, and would change with every word that is added.
pub fn advice(word: &str, valid: &[&str], what: &str) -> String {
    const FEW: usize = 8;
    const LISTED_OF_MANY: usize = 3;
    let meant = nearest(word, valid.iter().copied()).map(|meant| format!("did you mean `{meant}`?"));
    if valid.len() <= FEW {
        let listed = format!("{what}: {}", valid.join(", "));
        return meant.map_or_else(|| listed.clone(), |meant| format!("{meant} ({listed})"));
    }
    meant.unwrap_or_else(|| format!("{what}: {}, …", closest(word, valid, LISTED_OF_MANY).join(", ")))
}

/// Returns the `count` words with the fewest edits, however many edits those are.
fn closest<'a>(word: &str, candidates: &[&'a str], count: usize) -> Vec<&'a str> {
    let mut sorted = candidates.to_vec();
    if let Some(word) = lowered(word) {
        sorted.sort_by_cached_key(|candidate| {
            lowered(candidate).map_or(usize::MAX, |letters| distance(&word, &letters))
        });
    }
    sorted.truncate(count);
    sorted
}

fn lowered(word: &str) -> Option<Vec<char>> {
    let lowered: Vec<char> = word.chars().take(LONGEST_COMPARED + 1).flat_map(char::to_lowercase).collect();
    (lowered.len() <= LONGEST_COMPARED).then_some(lowered)
}

/// Returns the edits between two words: a letter added, removed or changed, or two neighbours swapped.
fn distance(a: &[char], b: &[char]) -> usize {
    // Bytes, so that copying a row is fast: ten thousand names may be compared.
    let mut before_last = [0_u8; LONGEST_COMPARED + 1];
    let mut last: [u8; LONGEST_COMPARED + 1] = std::array::from_fn(|j| j as u8);
    for i in 1..=a.len() {
        let mut row = [i as u8; LONGEST_COMPARED + 1];
        for j in 1..=b.len() {
            let changed = last[j - 1] + u8::from(a[i - 1] != b[j - 1]);
            row[j] = changed.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    usize::from(last[b.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_word_finds_what_was_meant() {
        let words =
            ["backend", "action", "params", "timeout", "exec", "tasks", "max_retries", "max_age", "retry"];
        for (typed, meant) in [
            ("bakend", Some("backend")),
            ("Action", Some("action")),
            ("parms", Some("params")),
            ("tiemout", Some("timeout")),
            ("exce", Some("exec")),
            ("task", Some("tasks")),
            ("retries", Some("max_retries")),
            ("max", None),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, words), meant, "{typed}");
        }
    }

    #[test]
    fn a_word_of_one_letter_is_not_taken_for_another() {
        assert_eq!(nearest("x", ["a", "b"]), None);
    }

    #[test]
    fn huge_words_are_not_compared() {
        let huge = "x".repeat(1_000_000);
        assert_eq!(nearest(&huge, ["exec"]), None);
    }

    #[test]
    fn advice_lists_what_is_valid() {
        assert_eq!(
            advice("exce", &["exec", "ping"], "backends"),
            "did you mean `exec`? (backends: exec, ping)"
        );
        assert_eq!(advice("docker", &["exec", "ping"], "backends"), "backends: exec, ping");
    }

    #[test]
    fn advice_lists_the_nearest_of_many() {
        let words = ["apt", "docker", "exec", "file", "http", "ping", "rke2", "systemd", "test"];
        assert_eq!(advice("exce", &words, "backends"), "did you mean `exec`?");
        assert_eq!(advice("helm", &words, "backends"), "backends: file, http, test, …");
    }
}
