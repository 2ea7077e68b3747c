//! Owns the database's files on disk: their permissions, whether they still exist, and whether the disk has room.
//! SQLite owns their contents.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::geteuid;

use super::failure::Failure;
use crate::port::{Error, Result};

/// Only the server's own user may read a store: params and output may contain secrets.
const PRIVATE_DIRECTORY: u32 = 0o700;
const PRIVATE_FILE: u32 = 0o600;
/// With less free space than this a commit of ordinary size fails.
const LEAST_FREE_BYTES: u64 = 1024 * 1024;

/// The suffixes of the files that SQLite and this program keep next to the database.
const SUFFIXES: [&str; 3] = ["-wal", "-shm", ".lock"];

pub(super) fn cannot(act: &str, path: &Path, error: impl Display) -> Error {
    Error::Unavailable(format!("cannot {act} `{}`: {error}", path.display()))
}

/// Returns the path of a file next to the database.
pub(crate) fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Creates the database's directory, accessible to this user only.
pub(crate) fn make_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE_DIRECTORY).create(directory)
}

/// Opens a file for writing, and creates it with access for this user only if it is missing.
pub(crate) fn make_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(PRIVATE_FILE).open(path)
}

/// Makes the files of an earlier release private, and their directory if it contains nothing else. Files of another
/// owner stay unchanged: they may be shared on purpose, and only their owner can change them.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    for file in [path.to_owned()].into_iter().chain(SUFFIXES.map(|suffix| sibling(path, suffix))) {
        restrict(&file, PRIVATE_FILE)?;
    }
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let is_ours =
        |entry: fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(name.as_encoded_bytes());
    if fs::read_dir(directory)?.all(|entry| entry.is_ok_and(is_ours)) {
        restrict(directory, PRIVATE_DIRECTORY)?;
    }
    Ok(())
}

/// Sets `mode` if others have any permission; otherwise group permissions, which somebody set on purpose, stay.
fn restrict(path: &Path, mode: u32) -> io::Result<()> {
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if found.mode() & 0o007 == 0 || found.uid() != geteuid().as_raw() {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// The files that a store has open. Writes to a file that was removed or replaced succeed, but the data is lost.
#[derive(Debug)]
pub(crate) struct Files {
    path: PathBuf,
    database: (u64, u64),
    log: (u64, u64),
    /// The first error that showed damage. Damage remains while the file is open.
    damage: Mutex<Option<String>>,
}

impl Files {
    /// Must be called after SQLite has opened the database and written to its log.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let known = |file: &Path| identity(file).map_err(|error| cannot("access", file, error));
        Ok(Self {
            path: path.to_owned(),
            database: known(path)?,
            log: known(&sibling(path, "-wal"))?,
            damage: Mutex::default(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Converts a failure to an error. Remembers damage.
    pub(crate) fn explain(&self, failure: Failure) -> Error {
        let error = failure.at(&self.path);
        if let Error::Damaged(text) = &error {
            self.damage().get_or_insert_with(|| text.clone());
        }
        error
    }

    pub(crate) fn is_closed(&self) -> Error {
        Error::Unavailable(format!("`{}` is closed", self.path.display()))
    }

    fn damage(&self) -> MutexGuard<'_, Option<String>> {
        self.damage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if one of the files is no longer at its path.
    pub(crate) fn check_exist(&self) -> Result<()> {
        let log = sibling(&self.path, "-wal");
        for (file, known) in [(&self.path, self.database), (&log, self.log)] {
            match identity(file) {
                Ok(found) if found == known => {}
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(cannot("access", file, error));
                }
                Ok(_) | Err(_) => {
                    return Err(Error::Unavailable(format!(
                        "`{}` was removed or replaced while the server had it open: put it back, or stop the server and \
                         restore a backup",
                        file.display()
                    )));
                }
            }
        }
        Ok(())
    }

    /// Fails if the files are damaged or missing, or if their disk is full or read-only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if let Some(damage) = self.damage().clone() {
            return Err(Error::Damaged(damage));
        }
        self.check_exist()?;
        let path = self.path.display();
        let disk = statvfs(&self.path).map_err(|error| cannot("access the disk of", &self.path, error))?;
        if disk.flags().contains(FsFlags::ST_RDONLY) {
            return Err(Error::Unavailable(format!("the disk of `{path}` is read-only")));
        }
        #[allow(clippy::useless_conversion, reason = "the width of these numbers differs between systems")]
        let free_bytes = u64::from(disk.blocks_available()) * u64::from(disk.fragment_size());
        if free_bytes < LEAST_FREE_BYTES {
            return Err(Error::Unavailable(format!("no space left for `{path}`; free space on its disk")));
        }
        Ok(())
    }
}

fn identity(file: &Path) -> io::Result<(u64, u64)> {
    let found = fs::metadata(file)?;
    Ok((found.dev(), found.ino()))
}
