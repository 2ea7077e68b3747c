//! Checks the project's own texts: code, names, documents and expected outputs do not use phrases that readers stumble
//! over.

use std::fs;
use std::path::{Path, PathBuf};

/// Phrases, each with a plain alternative. An `_` in a name counts as a blank.
const PHRASES: [(&str, &str); 14] = [
    ("came to", "name the value: \"expected a list, got a string\""),
    ("comes to", "evaluates to, or: ends as"),
    ("told", "name who sends what: \"the server sends the agent …\""),
    ("anew", "again"),
    ("whoever", "name the subject"),
    ("for ever", "forever"),
    ("of one moment", "at the same time, or: consistent"),
    ("nobody is left", "no node is left"),
    ("is none any more", "is no longer valid"),
    ("and 0 may", "(max_failures: 0)"),
    ("ended well", "succeeded"),
    ("answers what", "returns"),
    ("under way", "active (a run), running (a step), in flight (a message)"),
    ("nothing is said", "default: …"),
];

/// Texts of former releases, and of the tools that the project uses.
const NOT_OURS: [&str; 7] = ["target", ".git", "node_modules", "migrations", "golden", "corpus", "LICENSE"];

const KINDS: [&str; 11] =
    ["rs", "md", "svelte", "ts", "mjs", "yaml", "service", "proto", "toml", "txt", "snap"];

fn texts(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if NOT_OURS.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            texts(&path, found);
        } else if name.rsplit_once('.').is_none_or(|(_, kind)| KINDS.contains(&kind)) {
            found.push(path);
        }
    }
}

/// Returns the line as words: lower case, with one blank around and between them.
fn words(line: &str) -> String {
    let mut words = String::with_capacity(line.len() + 2);
    words.push(' ');
    for letter in line.chars() {
        if letter.is_alphanumeric() {
            words.extend(letter.to_lowercase());
        } else if !words.ends_with(' ') {
            words.push(' ');
        }
    }
    if !words.ends_with(' ') {
        words.push(' ');
    }
    words
}

/// Returns the problems with a line, each with the phrase and an alternative.
fn problems(line: &str) -> Vec<(&'static str, &'static str)> {
    let words = words(line);
    let has = |phrase: &str| words.match_indices(phrase).any(|(at, _)| is_whole(&words, at, phrase));
    let mut found: Vec<_> = PHRASES.iter().copied().filter(|(phrase, _)| has(phrase)).collect();
    if is_riddle(&words) {
        found.push(("is no …", "is not a …"));
    }
    found
}

fn is_whole(words: &str, at: usize, phrase: &str) -> bool {
    words[..at].ends_with(' ') && words[at + phrase.len()..].starts_with(' ')
}

/// Returns whether the line contains "X is no Y". "There is no Y" and "is no longer" are fine.
fn is_riddle(words: &str) -> bool {
    [" is no ", " are no "].iter().any(|phrase| {
        words.match_indices(phrase).any(|(at, _)| {
            let (before, after) = (&words[..at], &words[at + phrase.len()..]);
            !before.ends_with(" there") && !after.starts_with("longer ") && !after.starts_with("more ")
        })
    })
}

#[test]
fn texts_use_plain_words() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    texts(&root, &mut files);
    assert!(files.len() > 500, "{} files", files.len());
    let mut all = Vec::new();
    for file in files.iter().filter(|file| !file.ends_with("core/tests/words.rs")) {
        let Ok(text) = fs::read_to_string(file) else { continue };
        for (number, line) in text.lines().enumerate() {
            let at = format!("{}:{}", file.strip_prefix(&root).unwrap().display(), number + 1);
            let found = problems(line).into_iter();
            all.extend(found.map(|(phrase, instead)| format!("{at}: \"{phrase}\"; write: {instead}")));
        }
    }
    assert!(all.is_empty(), "{} texts to reword:\n{}", all.len(), all.join("\n"));
}

#[test]
fn a_riddle_is_found_and_its_plain_siblings_are_not() {
    for line in
        ["x is no size", "fn what_is_no_list_fails()", "let told = 1;", "Whoever asks", "sent for ever."]
    {
        assert_eq!(problems(line).len(), 1, "{line}");
    }
    for line in
        ["there is no node", "it is no longer current", "for every node", "it came too late", "retold"]
    {
        assert_eq!(problems(line), [], "{line}");
    }
}
