//! The project's own texts: phrases that readers stumble over are not used in code, documents or scripts.

use std::fs;
use std::path::{Path, PathBuf};

/// Phrases, each with a plain alternative.
const PHRASES: [(&str, &str); 12] = [
    ("came to", "name the value: \"expected a list, got a string\""),
    ("comes to a", "evaluates to a"),
    ("is told", "name who sends what: \"the server sends the agent …\""),
    ("are told", "name who sends what"),
    ("anew", "again"),
    ("whoever", "name the subject"),
    ("for ever", "forever"),
    ("of one moment", "at the same time"),
    ("nobody is left", "no node is left"),
    ("is none any more", "is no longer valid"),
    ("and 0 may", "(max_failures: 0)"),
    ("ended well", "succeeded"),
];

/// Texts of former releases, and of the tools that the project uses.
const NOT_OURS: [&str; 6] = ["target", ".git", "migrations", "golden", "corpus", "LICENSE"];

fn texts(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if NOT_OURS.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            texts(&path, found);
        } else if name.rsplit_once('.').is_none_or(|(_, end)| ["rs", "md", "yaml", "service"].contains(&end)) {
            found.push(path);
        }
    }
}

/// Returns whether a line says "X is no Y", which reads as a riddle. "There is no Y" and "is no longer" are fine.
fn says_is_no(line: &str) -> bool {
    [" is no ", " are no "].iter().any(|phrase| {
        line.match_indices(phrase).any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + phrase.len()..]);
            let is_existence = before.to_lowercase().ends_with("there");
            !is_existence && !after.starts_with("longer") && !after.starts_with("more")
        })
    })
}

#[test]
fn texts_use_plain_words() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    texts(&root, &mut files);
    assert!(files.len() > 500, "{} files", files.len());
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| !file.ends_with("core/tests/words.rs")) {
        let Ok(text) = fs::read_to_string(file) else { continue };
        for (number, line) in text.lines().enumerate() {
            let at = format!("{}:{}", file.strip_prefix(&root).unwrap().display(), number + 1);
            let lower = line.to_lowercase();
            for (phrase, instead) in PHRASES.iter().filter(|(phrase, _)| lower.contains(phrase)) {
                problems.push(format!("{at}: \"{phrase}\"; write: {instead}"));
            }
            if says_is_no(line) {
                problems.push(format!("{at}: \"is no …\"; write: is not a …"));
            }
        }
    }
    assert!(problems.is_empty(), "{} texts to reword:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn a_riddle_is_found() {
    assert!(says_is_no("x is no size that is possible"));
    assert!(!says_is_no("there is no node with this name"));
    assert!(!says_is_no("it is no longer current"));
}
