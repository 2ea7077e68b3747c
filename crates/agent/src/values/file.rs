//! Owns the file in which a task writes its values: made for it, read once, removed. The task may have put anything in its
//! place, so nothing is followed, waited for or read without end.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use downbeat_core::limits::VALUES_BYTES;
use nix::errno::Errno;
use nix::fcntl::OFlag;

use crate::private;

/// Neither a link nor a pipe that nobody writes to: what is opened is what is looked at.
const UNFOLLOWED: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK);

/// Makes the file, empty.
pub(super) fn make(path: &Path) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        private::create_dir(dir)?;
    }
    private::create(path).map(drop)
}

/// Returns what the task wrote, or one byte more than it may be. The error is for the person who wrote the task.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let file = OpenOptions::new().read(true).custom_flags(UNFOLLOWED.bits()).open(path);
    let file = file.map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => "the file $DOWNBEAT_OUTPUT is gone".to_owned(),
        Some(Errno::ELOOP) => "$DOWNBEAT_OUTPUT is a link, not a file any more".to_owned(),
        _ => format!("cannot read the file $DOWNBEAT_OUTPUT: {error}"),
    })?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err("$DOWNBEAT_OUTPUT is not a file any more".to_owned());
    }
    let mut text = String::new();
    let read = file.take(VALUES_BYTES as u64 + 1).read_to_string(&mut text);
    read.map_err(|error| format!("cannot read the file $DOWNBEAT_OUTPUT: {error}"))?;
    Ok(text)
}

/// Removes whatever is there. Links are removed, not followed.
pub(super) fn remove(path: &Path) {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => return,
    };
    if let Err(error) = removed {
        tracing::warn!(path = %path.display(), %error, "cannot remove the file of a task's values");
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn what_a_task_put_in_the_place_of_its_file_is_neither_followed_nor_waited_for_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        fs::write(&secret, "a=of somebody else").unwrap();
        let path = dir.path().join("values").join("file");
        type Put = fn(&Path, &Path);
        let cases: [(&str, Put); 5] = [
            ("is gone", |_, _| {}),
            ("is a link", |path, secret| std::os::unix::fs::symlink(secret, path).unwrap()),
            ("is not a file", |path, _| nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap()),
            ("is not a file", |path, secret| {
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
    fn a_file_without_end_is_read_no_further_than_it_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "x".repeat(VALUES_BYTES * 3)).unwrap();
        assert_eq!(read(&path).unwrap().len(), VALUES_BYTES + 1);
    }
}
