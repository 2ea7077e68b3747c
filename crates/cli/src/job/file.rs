//! Reads a job file, or a file of standing tasks, from a path or from standard input.

use std::fs::File;
use std::io::{self, Read};

use downbeat_core::limits;

use crate::exit::{Failure, Result};

/// The bytes of a job file, and its name in messages.
#[derive(Debug)]
pub(crate) struct JobFile {
    pub(crate) bytes: Vec<u8>,
    pub(crate) name: String,
}

impl JobFile {
    /// Reads the file; `-` is standard input.
    pub(crate) fn read(path: &str) -> Result<Self> {
        let (name, bytes) = if path == "-" {
            ("<stdin>", bounded(io::stdin().lock()))
        } else {
            (path, File::open(path).and_then(bounded))
        };
        let bytes =
            bytes.map_err(|error| Failure::bad_input(format!("cannot read {name}: {}", describe(&error))))?;
        Ok(Self { bytes, name: name.to_owned() })
    }

    pub(crate) fn text(self) -> Result<(String, String)> {
        match String::from_utf8(self.bytes) {
            Ok(text) => Ok((text, self.name)),
            Err(_) => Err(Failure::bad_input(format!("{} is not UTF-8 text", self.name))),
        }
    }
}

/// Reads at most one byte more than is allowed: enough to refuse the file.
fn bounded(input: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(limits::JOB_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::IsADirectory => "it is a directory".to_owned(),
        _ => error.to_string(),
    }
}
