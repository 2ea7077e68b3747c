//! Owns the permissions of the agent's files: only its own user may read them, since results contain lease tokens and
//! output of root's jobs. The modes are independent of the umask, and are also set on files of older releases.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

pub(crate) use downbeat_backends::private::{DIR_MODE, FILE_MODE, create_dir, write};

const STICKY: u32 = 0o1000;
/// The entries of the data directory.
const KEPT: [&str; 8] = ["lock", "session", "instance", "life", "containers", "outbox", "running", "values"];

/// Opens a file for writing, truncated, that only its owner can read.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    Ok(file)
}

/// Creates the data directory, or removes the access of others to it and to the agent's files in it.
pub(crate) fn claim(data: &Path) -> io::Result<()> {
    let is_ours = match fs::read_dir(data) {
        // A directory that the agent shares (`/tmp`, a home directory) keeps its mode.
        Ok(mut entries) => entries.next().is_none() || data.join("outbox").is_dir(),
        Err(_) => true,
    };
    create_dir(data)?;
    if is_ours && fs::metadata(data)?.permissions().mode() & STICKY == 0 {
        close(data, DIR_MODE);
    }
    for name in KEPT {
        close_all(&data.join(name));
    }
    Ok(())
}

/// Removes the access of others to a file, or to a directory and its files. Does not follow links.
fn close_all(path: &Path) {
    let Ok(metadata) = fs::symlink_metadata(path) else { return };
    if metadata.is_dir() {
        close(path, DIR_MODE);
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                close(&entry.path(), FILE_MODE);
            }
        }
    } else if metadata.is_file() {
        close(path, FILE_MODE);
    }
}

fn close(path: &Path, mode: u32) {
    let is_open =
        fs::symlink_metadata(path).is_ok_and(|found| found.permissions().mode() & 0o777 & !mode != 0);
    if is_open && let Err(error) = fs::set_permissions(path, Permissions::from_mode(mode)) {
        tracing::warn!(path = %path.display(), %error, "other users of this host can read the agent's files here");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn open_to_all(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn files_of_an_older_agent_are_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        fs::create_dir_all(data.join("outbox")).unwrap();
        for file in ["session", "outbox/00000001.log"] {
            fs::write(data.join(file), "x").unwrap();
            open_to_all(&data.join(file), 0o644);
        }
        open_to_all(&data, 0o755);
        open_to_all(&data.join("outbox"), 0o755);
        claim(&data).unwrap();
        assert_eq!((mode(&data), mode(&data.join("outbox"))), (DIR_MODE, DIR_MODE));
        assert_eq!(mode(&data.join("session")), FILE_MODE);
        assert_eq!(mode(&data.join("outbox/00000001.log")), FILE_MODE);
    }

    #[test]
    fn a_directory_that_others_use_too_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("of somebody else"), "x").unwrap();
        open_to_all(dir.path(), 0o755);
        claim(dir.path()).unwrap();
        assert_eq!(mode(dir.path()), 0o755);
        let shared = dir.path().join("tmp");
        fs::create_dir_all(shared.join("outbox")).unwrap();
        fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
        claim(&shared).unwrap();
        assert_eq!(mode(&shared), 0o777, "a sticky directory is shared");
        assert_eq!(mode(&shared.join("outbox")), DIR_MODE);
    }

    #[test]
    fn a_new_file_is_closed_whatever_it_was_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("session");
        fs::write(&path, "older").unwrap();
        open_to_all(&path, 0o666);
        write(&path, "x").unwrap();
        assert_eq!((mode(&path), fs::read_to_string(&path).unwrap()), (FILE_MODE, "x".to_owned()));
    }
}
