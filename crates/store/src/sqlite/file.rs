//! Owns the database's files on their disk: who may read them, whether they are still there, and whether there is room.
//! What is in them is SQLite's.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::geteuid;

use super::failure::Failure;
use crate::port::Error;

/// Only the server's own user reads what a store holds: params and output may be secrets.
const PRIVATE_DIRECTORY: u32 = 0o700;
const PRIVATE_FILE: u32 = 0o600;
/// With less room than this a commit of ordinary size fails.
const LEAST_FREE_BYTES: u64 = 1024 * 1024;

/// The files that SQLite and this program keep beside the database, by the ends of their names.
const BESIDE: [&str; 3] = ["-wal", "-shm", ".lock"];

/// A file beside the database.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Creates the database's directory, for nobody else to look into.
pub(crate) fn make_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE_DIRECTORY).create(directory)
}

/// Opens a file to write, and creates it, for nobody else to read, if it is missing.
pub(crate) fn make_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(PRIVATE_FILE).open(path)
}

/// Makes the files of an earlier release private, and their directory if it holds nothing else. Files of another owner
/// stay as they are: they may be shared on purpose, and only their owner can change them.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    for file in [path.to_owned()].into_iter().chain(BESIDE.map(|suffix| beside(path, suffix))) {
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

/// Takes the rights of others away. Rights of the group, which somebody gave on purpose, stay with a file that nobody else
/// may read.
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

/// Which files a store has open. A file that was removed or replaced under its path is still written to without an
/// error, and nobody finds it again.
#[derive(Debug)]
pub(crate) struct Files {
    path: PathBuf,
    database: (u64, u64),
    log: (u64, u64),
    /// How a statement first failed because of it. Damage does not go away while the file is open.
    damage: Mutex<Option<String>>,
}

impl Files {
    /// To be called when SQLite has opened the database and written to its log.
    pub(crate) fn of(path: &Path) -> Result<Self, Error> {
        let known = |file: &Path| {
            identity(file)
                .map_err(|error| Error::Unavailable(format!("cannot look at `{}`: {error}", file.display())))
        };
        Ok(Self {
            path: path.to_owned(),
            database: known(path)?,
            log: known(&beside(path, "-wal"))?,
            damage: Mutex::default(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What a failure means to the caller. Damage is remembered.
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

    /// Fails when one of the files is not under its path any more.
    pub(crate) fn are_there(&self) -> Result<(), Error> {
        let log = beside(&self.path, "-wal");
        for (file, known) in [(&self.path, self.database), (&log, self.log)] {
            match identity(file) {
                Ok(found) if found == known => {}
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::Unavailable(format!("cannot look at `{}`: {error}", file.display())));
                }
                Ok(_) | Err(_) => {
                    return Err(Error::Unavailable(format!(
                        "`{}` was removed or replaced while the server had it open: put it back, or stop the server and \
                         restore a copy",
                        file.display()
                    )));
                }
            }
        }
        Ok(())
    }

    /// Fails when the files are damaged or gone, or when their disk takes no more.
    pub(crate) fn can_be_written(&self) -> Result<(), Error> {
        if let Some(damage) = self.damage().clone() {
            return Err(Error::Damaged(damage));
        }
        self.are_there()?;
        let path = self.path.display();
        let disk = statvfs(&self.path)
            .map_err(|error| Error::Unavailable(format!("cannot look at the disk of `{path}`: {error}")))?;
        if disk.flags().contains(FsFlags::ST_RDONLY) {
            return Err(Error::Unavailable(format!("the disk of `{path}` is read-only")));
        }
        #[allow(clippy::useless_conversion, reason = "the width of these numbers differs between systems")]
        let free_bytes = u64::from(disk.blocks_available()) * u64::from(disk.fragment_size());
        if free_bytes < LEAST_FREE_BYTES {
            return Err(Error::Unavailable(format!(
                "there is no space left for `{path}`: make room on its disk"
            )));
        }
        Ok(())
    }
}

fn identity(file: &Path) -> io::Result<(u64, u64)> {
    let found = fs::metadata(file)?;
    Ok((found.dev(), found.ino()))
}
