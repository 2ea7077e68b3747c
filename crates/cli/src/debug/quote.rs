//! Turns the arguments of a command into a line for a shell.

/// Returns the line: a single argument as it is, several of them so that the shell reads each as one word.
pub(super) fn command(arguments: &[String]) -> String {
    match arguments {
        [line] => line.clone(),
        words => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn line(arguments: &[&str]) -> String {
        command(&arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn one_argument_is_a_line_for_the_shell() {
        assert_eq!(line(&["ps aux | grep nginx"]), "ps aux | grep nginx");
        assert_eq!(line(&["echo $HOME"]), "echo $HOME");
        assert_eq!(line(&[""]), "");
    }

    #[test]
    fn plain_words_are_not_quoted() {
        assert_eq!(line(&["uname", "-a"]), "uname -a");
        assert_eq!(line(&["df", "-h", "/"]), "df -h /");
    }

    #[test]
    fn the_shell_reads_each_of_several_arguments_as_one_word() {
        let words = ["a b", "", "it's", "$HOME", "`id`", "a\"b", "x\ny", "*", "~", "!", "é", "\\", "-n", "#"];
        let all: Vec<&str> = ["printf", "%s|"].into_iter().chain(words).collect();
        let output = Command::new("bash").args(["-c", &line(&all)]).output().unwrap();
        let expected: String = words.iter().map(|word| format!("{word}|")).collect();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }
}
