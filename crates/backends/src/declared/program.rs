//! Owns the rules for a declared program: an absolute path, and not an interpreter that gets its script as an argument.

use std::path::Path;

/// Interpreters by the starts of their names, and the letters of the options that expect a script.
const INTERPRETERS: [(&[&str], &[char]); 4] = [
    (&["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "python"], &['c']),
    (&["perl"], &['e', 'E']),
    (&["ruby"], &['e']),
    (&["node"], &['e', 'p']),
];
/// Long options that expect a script.
const LONG: [&str; 3] = ["--command", "--eval", "--print"];

/// Returns why an argv is refused. Its placeholders are `None`.
pub(super) fn refused(argv: &[Option<&str>]) -> Option<String> {
    let program = match argv.first() {
        None => return Some("is empty; its first element is the program to run".to_owned()),
        Some(None) => {
            return Some("the program must not be a param; write its absolute path".to_owned());
        }
        Some(Some(program)) => program,
    };
    if !Path::new(program).is_absolute() {
        return Some(format!("the program `{program}` must be an absolute path"));
    }
    // Also after another program: `env bash -c`.
    let (position, letters) =
        argv.iter().enumerate().find_map(|(position, word)| Some((position, interpreter((*word)?)?)))?;
    let script = argv[position + 1..].iter().flatten().find(|word| takes_script(word, letters))?;
    Some(format!(
        "`{}` with `{script}` would run its argument as a script; write a script file and name it",
        argv[position].unwrap_or_default()
    ))
}

fn interpreter(word: &str) -> Option<&'static [char]> {
    let name = Path::new(word).file_name()?.to_str()?;
    // `python3.12`, `bash5`
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
    INTERPRETERS.iter().find(|(known, _)| known.contains(&bare)).map(|(_, letters)| *letters)
}

/// Matches `-c`, `-lc`, `-c=x`, `--command`.
fn takes_script(word: &str, letters: &[char]) -> bool {
    match word.strip_prefix('-') {
        Some(long) if long.starts_with('-') => {
            LONG.iter().any(|known| word == *known || word.starts_with(&format!("{known}=")))
        }
        Some(short) => short.chars().take_while(|c| *c != '=').any(|c| letters.contains(&c)),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_that_are_handed_a_script_are_refused() {
        for argv in [
            &["/bin/sh", "-c", "x"][..],
            &["/bin/bash", "-lc", "x"],
            &["/usr/bin/bash", "-e", "-c", "x"],
            &["/usr/bin/env", "bash", "-c", "x"],
            &["/usr/bin/env", "A=1", "/bin/dash", "-c", "x"],
            &["/usr/bin/fish", "--command=x"],
            &["/usr/bin/python3.12", "-c", "x"],
            &["/usr/bin/perl", "-we", "x"],
            &["/usr/bin/node", "--eval", "x"],
            &["/bin/busybox", "sh", "-c", "x"],
        ] {
            let argv: Vec<Option<&str>> = argv.iter().map(|word| Some(*word)).collect();
            assert!(refused(&argv).unwrap().contains("would run its argument as a script"), "{argv:?}");
        }
        for argv in [
            &["/bin/sh", "/opt/backup.sh", "now"][..],
            &["/usr/bin/python3", "/opt/x.py"],
            &["/usr/bin/rsync", "-c", "x"],
            &["/opt/shed", "-c"],
        ] {
            let argv: Vec<Option<&str>> = argv.iter().map(|word| Some(*word)).collect();
            assert_eq!(refused(&argv), None, "{argv:?}");
        }
    }
}
