//! `file write`: writes a draft with the new content, owner and mode durably, then renames it to the file. Readers see
//! the old file or the new one.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use downbeat_core::backend::Params;
use nix::unistd::{Group, User};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::super::params::text;
use super::stat::hex;
use super::{Reply, open_unfollowed, stopped, sync_directory_of};

/// The default of a new file.
const MODE: u32 = 0o644;

/// The wanted state of the file. Unset properties stay as they are.
#[derive(Debug)]
pub(super) struct Wanted {
    content: String,
    mode: Option<u32>,
    owner: Option<String>,
}

impl Wanted {
    pub(super) fn read(params: &Params) -> Result<Self, String> {
        let octal = |digits| {
            let wrong = |_| format!("param `mode`: `{digits}` is not octal digits such as 0644");
            u32::from_str_radix(digits, 8).map_err(wrong)
        };
        Ok(Self {
            content: text(params, "content").unwrap_or_default().to_owned(),
            mode: text(params, "mode").map(octal).transpose()?,
            owner: text(params, "owner").map(str::to_owned),
        })
    }

    pub(super) fn write(&self, path: &Path, cancel: &CancellationToken) -> Reply {
        let shown = path.display();
        let failed = |error: io::Error| format!("cannot write `{shown}`: {error}");
        let owner = self.owner.as_deref().map(Owner::find).transpose()?.unwrap_or_default();
        let found = match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => return Err(format!("cannot write `{shown}`: it is a directory")),
            Ok(found) => Some(found),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        // A link, a socket and the like are replaced by a file, and have no properties that it could keep.
        let found = found.filter(fs::Metadata::is_file);
        let mode = self.mode.unwrap_or_else(|| found.as_ref().map_or(MODE, |found| found.mode() & 0o7777));
        if let Some(found) = &found
            && found.mode() & 0o7777 == mode
            && owner.is_of(found)
            && self.is_content_of(path, found)
        {
            return Ok(format!("unchanged {shown}"));
        }
        stopped(cancel)?;
        let draft = Draft::create(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                format!("cannot write `{shown}`: its directory does not exist; create it first")
            }
            _ => failed(error),
        })?;
        let mut file = &draft.file;
        file.write_all(self.content.as_bytes()).map_err(failed)?;
        let kept = |of: fn(&fs::Metadata) -> u32| found.as_ref().map(of);
        let (uid, gid) =
            (owner.uid.or_else(|| kept(MetadataExt::uid)), owner.gid.or_else(|| kept(MetadataExt::gid)));
        let own = file.metadata().map_err(failed)?;
        if uid.is_some_and(|uid| uid != own.uid()) || gid.is_some_and(|gid| gid != own.gid()) {
            fchown(file, uid, gid).map_err(|error| format!("cannot set the owner of `{shown}`: {error}"))?;
        }
        // After the owner: a change of owner clears the set-user-id bit.
        file.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        stopped(cancel)?;
        draft.take_name(path).map_err(failed)?;
        sync_directory_of(path).map_err(failed)?;
        Ok(format!("written {shown}: {} bytes", self.content.len()))
    }

    fn is_content_of(&self, path: &Path, found: &fs::Metadata) -> bool {
        if found.len() != self.content.len() as u64 {
            return false;
        }
        let Ok(file) = open_unfollowed(path) else { return false };
        let mut content = Vec::with_capacity(self.content.len());
        file.take(self.content.len() as u64 + 1)
            .read_to_end(&mut content)
            .is_ok_and(|_| content == self.content.as_bytes())
    }
}

#[derive(Default)]
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Owner {
    fn find(text: &str) -> Result<Self, String> {
        let id = |kind: &str, name: &str, found: Option<u32>| match found {
            Some(id) => Ok(id),
            None => name
                .parse()
                .map_err(|_| format!("param `owner`: {kind} `{name}` does not exist on this host")),
        };
        let uid = |name| id("user", name, User::from_name(name).ok().flatten().map(|user| user.uid.as_raw()));
        let gid =
            |name| id("group", name, Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw()));
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        Ok(Self { uid: Some(uid(user)?), gid: group.map(gid).transpose()? })
    }

    fn is_of(&self, found: &fs::Metadata) -> bool {
        self.uid.is_none_or(|uid| uid == found.uid()) && self.gid.is_none_or(|gid| gid == found.gid())
    }
}

/// The new file before it is renamed. Removed if it is dropped before that.
///
/// Its name derives from the file's, so that the next write of the file finds and removes the draft of a killed agent.
/// A lock distinguishes a leftover draft from one that is being written.
struct Draft {
    path: PathBuf,
    file: File,
    named: bool,
}

impl Draft {
    fn create(target: &Path) -> io::Result<Self> {
        let name = target.file_name().unwrap_or_default().as_encoded_bytes();
        let name = format!(".downbeat-{}", &hex(&Sha256::digest(name))[..16]);
        let path = target.with_file_name(name);
        let file = match Self::open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Self::remove_leftover(&path)?;
                Self::open(&path)?
            }
            other => other?,
        };
        let draft = Self { path, file, named: false };
        draft.file.try_lock()?;
        Ok(draft)
    }

    /// Never opens an existing file: another process might have it open, and write to it later.
    fn open(path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
    }

    fn remove_leftover(path: &Path) -> io::Result<()> {
        if open_unfollowed(path).is_ok_and(|left| left.try_lock().is_err()) {
            return Err(io::Error::new(ErrorKind::ResourceBusy, "another write of it is in progress"));
        }
        fs::remove_file(path)
    }

    fn take_name(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.named = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.named {
            let _ = fs::remove_file(&self.path);
        }
    }
}
