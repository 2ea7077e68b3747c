//! Owns how a file is written that only its owner can read: what an agent keeps says what runs on its host.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Nobody else has a reason to read what is kept, whatever the umask is.
pub const DIR_MODE: u32 = 0o700;
pub const FILE_MODE: u32 = 0o600;

/// Writes a file anew, whole or not at all: what was there before stays if this fails.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let part = path.with_extension("part");
    // What a crash left there may be open to others.
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut new = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&part)?;
    new.write_all(text.as_bytes())?;
    new.sync_all()?;
    fs::rename(&part, path)
}
