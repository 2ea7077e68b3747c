//! Owns how files are written that only their owner can read: the agent's files show what runs on its host.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// The modes of the agent's files, independent of the umask.
pub const DIR_MODE: u32 = 0o700;
pub const FILE_MODE: u32 = 0o600;

/// Creates a directory, and its parents, that only its owner can enter. Does not change an existing one.
pub fn create_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(path)
}

/// Replaces a file completely or not at all: the old content stays if this fails.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let part = path.with_extension("part");
    // A leftover of a crash may be readable to others.
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut new = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&part)?;
    new.write_all(text.as_bytes())?;
    new.sync_all()?;
    fs::rename(&part, path)
}
