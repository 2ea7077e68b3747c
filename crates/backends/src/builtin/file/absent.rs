//! `file absent`: whatever has this name is gone afterwards, except a directory that holds something.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::{Told, sync_directory_of};

pub(super) fn remove(path: &Path) -> Told {
    let shown = path.display();
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::DirectoryNotEmpty => {
            format!("cannot remove `{shown}`: the directory is not empty; remove what is in it first")
        }
        _ => format!("cannot remove `{shown}`: {error}"),
    };
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Ok(()) => {
            sync_directory_of(path).map_err(failed)?;
            Ok(format!("removed {shown}"))
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(format!("unchanged {shown}: it is not there"))
        }
        Err(error) => Err(failed(error)),
    }
}
