//! The tested program, and the commands that start it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the tested program. Cargo sets its path for tests of the package that builds it; other tests find it in the
/// target directory.
pub fn program() -> PathBuf {
    std::env::var_os("CARGO_BIN_EXE_downbeat").map(PathBuf::from).unwrap_or_else(|| {
        let test = std::env::current_exe().expect("a test is a program");
        test.ancestors().nth(2).expect("tests are in target/PROFILE/deps").join("downbeat")
    })
}

/// Returns a command of the tested program, without the environment's settings.
pub fn command(directory: &Path) -> Command {
    clean(Command::new(program()), directory)
}

/// Removes the environment's settings from a command, and pipes its output.
pub(crate) fn clean(mut command: Command, directory: &Path) -> Command {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DOWNBEAT_")) {
        command.env_remove(name);
    }
    command.env_remove("NO_COLOR").current_dir(directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns the root of the checkout.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the checkout exists")
}

/// Returns the path of an example job file.
pub fn example(name: &str) -> String {
    repository().join("examples").join(name).display().to_string()
}
