//! Owns the file in which a task writes its outputs: created for it, read once, removed. The task may have replaced it
//! by anything, so the agent does not follow links, wait for a pipe, or read without a limit.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use downbeat_core::limits::VALUES_BYTES;
use nix::errno::Errno;
use nix::fcntl::OFlag;

use crate::private;

/// Opens neither links nor pipes without a writer, so the file that is checked is the file that is read.
const UNFOLLOWED: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK);

pub(super) fn make(path: &Path) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        private::create_dir(dir)?;
    }
    private::create(path).map(drop)
}

/// Returns the text of the file, or one byte more than the limit. The error is for the task's author.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let file = OpenOptions::new().read(true).custom_flags(UNFOLLOWED.bits()).open(path);
    let file = file.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => "the file $DOWNBEAT_OUTPUT was removed".to_owned(),
        Some(Errno::ELOOP) => "$DOWNBEAT_OUTPUT was replaced by a link".to_owned(),
        _ => format!("cannot read the file $DOWNBEAT_OUTPUT: {error}"),
    })?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err("$DOWNBEAT_OUTPUT is no longer a regular file".to_owned());
    }
    let mut text = String::new();
    let read = file.take(VALUES_BYTES as u64 + 1).read_to_string(&mut text);
    read.map_err(|error| format!("cannot read the file $DOWNBEAT_OUTPUT: {error}"))?;
    Ok(text)
}

/// Removes the file, or whatever replaced it. Links are removed, not followed.
pub(super) fn remove(path: &Path) {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => return,
    };
    if let Err(error) = removed {
        tracing::warn!(path = %path.display(), %error, "cannot remove the file of a task's outputs");
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn a_replaced_file_is_neither_followed_nor_waited_for_and_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        fs::write(&secret, "a=of somebody else").unwrap();
        let path = dir.path().join("values").join("file");
        type Put = fn(&Path, &Path);
        let cases: [(&str, Put); 5] = [
            ("was removed", |_, _| {}),
            ("by a link", |path, secret| std::os::unix::fs::symlink(secret, path).unwrap()),
            ("no longer a regular file", |path, _| nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap()),
            ("no longer a regular file", |path, secret| {
                fs::create_dir_all(path.join("a/b")).unwrap();
                std::os::unix::fs::symlink(secret.parent().unwrap(), path.join("a/b/up")).unwrap();
            }),
            ("cannot read", |path, _| fs::write(path, [0xff]).unwrap()),
        ];
        for (expected, put) in cases {
            make(&path).unwrap();
            fs::remove_file(&path).unwrap();
            put(&path, &secret);
            let error = read(&path).unwrap_err();
            assert!(error.contains(expected), "{error}");
            remove(&path);
            assert!(fs::symlink_metadata(&path).is_err(), "{expected}: it is removed");
            assert!(secret.exists(), "{expected}: nothing else is");
        }
    }

    #[test]
    fn an_endless_file_is_read_up_to_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "x".repeat(VALUES_BYTES * 3)).unwrap();
        assert_eq!(read(&path).unwrap().len(), VALUES_BYTES + 1);
    }
}
