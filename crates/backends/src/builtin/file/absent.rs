//! `file absent`: removes a file, a link or an empty directory.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::{Reply, sync_directory_of};

pub(super) fn remove(path: &Path) -> Reply {
    let shown = path.display();
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::DirectoryNotEmpty => {
            format!("cannot remove `{shown}`: the directory is not empty; remove its content first")
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
            Ok(format!("unchanged {shown}: it does not exist"))
        }
        Err(error) => Err(failed(error)),
    }
}
