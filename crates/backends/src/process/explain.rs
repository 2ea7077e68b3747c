//! Owns the error texts for a process that could not be started.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use downbeat_spawn::{Error, Step};
use nix::errno::Errno;

use super::run::Program;
use super::start::candidates;
use crate::backend::Finish;

const EXIT_NOT_FOUND: i32 = 127;
const EXIT_NOT_RUNNABLE: i32 = 126;
/// The kernel reads no more of a script's first line.
const FIRST_LINE_BYTES: u64 = 256;

/// `path` is the search path of the process. Blocks: reads the program's file.
pub(super) fn not_started(program: &Program, path: Option<&OsStr>, error: &Error) -> Finish {
    let not_found = error.error.kind() == io::ErrorKind::NotFound;
    let reason = match error.step {
        Step::Directory => return wrong_dir(program, &error.error),
        Step::Execute if not_found => missing(program, path),
        Step::Execute => plain(&error.error),
        Step::Clone | Step::Group | Step::Streams | Step::Limits => error.to_string(),
    };
    let exit_code = if error.step == Step::Execute && not_found { EXIT_NOT_FOUND } else { EXIT_NOT_RUNNABLE };
    Finish::failed(Some(exit_code), format!("cannot run `{}`: {reason}", program.name))
}

pub(super) fn wrong_dir(program: &Program, error: &io::Error) -> Finish {
    let dir = program.working_dir.as_deref().unwrap_or(Path::new("")).display();
    let problem = match error.kind() {
        io::ErrorKind::NotFound => "does not exist".to_owned(),
        io::ErrorKind::NotADirectory => "is not a directory".to_owned(),
        io::ErrorKind::PermissionDenied => "cannot be entered: permission denied".to_owned(),
        _ => format!("cannot be entered: {error}"),
    };
    Finish::failed(None, format!("cannot run `{}`: working directory `{dir}` {problem}", program.name))
}

fn plain(error: &io::Error) -> String {
    match Errno::from_raw(error.raw_os_error().unwrap_or_default()) {
        Errno::EACCES => "permission denied".to_owned(),
        Errno::ENOEXEC => {
            "it is neither a program for this machine nor a script that starts with `#!` and an interpreter"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

/// The kernel returns the same error for a missing program and for a missing interpreter.
fn missing(program: &Program, path: Option<&OsStr>) -> String {
    let found = candidates(&program.name, path)
        .into_iter()
        .map(|file| program.working_dir.as_deref().unwrap_or(Path::new("")).join(file))
        .find(|file| fs::metadata(file).is_ok_and(|metadata| metadata.is_file()));
    let Some(file) = found else { return "command not found".to_owned() };
    match interpreter(&file) {
        Some(interpreter) => format!("its interpreter {} does not exist", interpreter.display()),
        None => "the loader that it needs does not exist".to_owned(),
    }
}

fn interpreter(script: &Path) -> Option<OsString> {
    let mut first = Vec::new();
    File::open(script).ok()?.take(FIRST_LINE_BYTES).read_to_end(&mut first).ok()?;
    let line = first.split(|byte| *byte == b'\n').next()?.strip_prefix(b"#!")?;
    let word = line.trim_ascii().split(|byte| byte.is_ascii_whitespace()).next()?;
    let word: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(word);
    Some(word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str, working_dir: Option<&Path>) -> Program {
        let working_dir = working_dir.map(Path::to_owned);
        Program { name: name.to_owned(), args: Vec::new(), env: Vec::new(), working_dir, stdin: None }
    }

    #[test]
    fn a_missing_interpreter_is_not_a_missing_command() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("script"), "#! /nope/interp -x\n").unwrap();
        fs::write(dir.path().join("binary"), b"\x7fELF").unwrap();
        let cases = [
            ("./script", "its interpreter /nope/interp does not exist"),
            ("./binary", "the loader that it needs does not exist"),
            ("./absent", "command not found"),
            ("no-such-program-anywhere", "command not found"),
        ];
        for (name, reason) in cases {
            let error = Error { step: Step::Execute, error: Errno::ENOENT.into() };
            let finish = not_started(&program(name, Some(dir.path())), None, &error);
            assert_eq!(finish, Finish::failed(Some(127), format!("cannot run `{name}`: {reason}")));
        }
    }

    #[test]
    fn a_wrong_working_directory_is_explained() {
        let program = program("true", Some(Path::new("/d")));
        let cases = [
            (Errno::ENOENT, "does not exist"),
            (Errno::ENOTDIR, "is not a directory"),
            (Errno::EACCES, "cannot be entered: permission denied"),
        ];
        for (errno, problem) in cases {
            let finish = not_started(&program, None, &Error { step: Step::Directory, error: errno.into() });
            let expected = format!("cannot run `true`: working directory `/d` {problem}");
            assert_eq!(finish, Finish::failed(None, expected));
        }
    }
}
