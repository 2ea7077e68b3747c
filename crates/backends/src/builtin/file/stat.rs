//! `file stat`: describes a path as one line of JSON. Links are not followed.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use jiff::Timestamp;
use nix::unistd::{Gid, Group, Uid, User};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::{Reply, open_unfollowed, stopped};

/// Larger files get no checksum, since reading them takes long; use `exec` for those.
const HASHED_BYTES: u64 = 64 * 1024 * 1024;

pub(super) fn describe(path: &Path, cancel: &CancellationToken) -> Reply {
    let failed = |error: io::Error| format!("cannot read `{}`: {error}", path.display());
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(json!({"path": path.to_string_lossy(), "exists": false}).to_string());
        }
        Err(error) => return Err(failed(error)),
    };
    // A user or group without a name is shown as its number.
    let owner = User::from_uid(Uid::from_raw(found.uid())).ok().flatten().map(|user| user.name);
    let group = Group::from_gid(Gid::from_raw(found.gid())).ok().flatten().map(|group| group.name);
    let mut reply = json!({
        "path": path.to_string_lossy(),
        "exists": true,
        "kind": kind(found.file_type()),
        "size": found.len(),
        "mode": format!("{:04o}", found.mode() & 0o7777),
        "owner": owner.unwrap_or_else(|| found.uid().to_string()),
        "group": group.unwrap_or_else(|| found.gid().to_string()),
        "uid": found.uid(),
        "gid": found.gid(),
        "mtime": Timestamp::new(found.mtime(), i32::try_from(found.mtime_nsec()).unwrap_or(0)).ok(),
    });
    if found.is_symlink() {
        reply["target"] = json!(fs::read_link(path).map_err(failed)?.to_string_lossy());
    }
    if found.is_file() && found.len() <= HASHED_BYTES {
        reply["sha256"] = json!(sha256(path, cancel)?);
    }
    Ok(reply.to_string())
}

fn kind(found: fs::FileType) -> &'static str {
    match found {
        _ if found.is_file() => "file",
        _ if found.is_dir() => "directory",
        _ if found.is_symlink() => "symlink",
        _ if found.is_fifo() => "fifo",
        _ if found.is_socket() => "socket",
        _ if found.is_block_device() => "block_device",
        _ if found.is_char_device() => "char_device",
        _ => "other",
    }
}

/// Returns `None` if the file grew, was replaced, or may not be read.
fn sha256(path: &Path, cancel: &CancellationToken) -> Result<Option<String>, String> {
    let Ok(file) = open_unfollowed(path) else { return Ok(None) };
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Ok(None);
    }
    let mut file = file.take(HASHED_BYTES + 1);
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        stopped(cancel)?;
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => hash.update(&buffer[..read]),
            Err(_) => return Ok(None),
        }
    }
    Ok((file.limit() > 0).then(|| hex(&hash.finalize())))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
