//! Reads the secrets of triggers from where the servers have them. They are read for each request, so that a changed secret
//! needs no restart, and are never kept.

use std::os::unix::ffi::OsStringExt;

use downbeat_core::limits::{HOOK_SECRET_BYTES, HOOK_SECRET_LEAST_BYTES};
use downbeat_core::spec::SecretSource;
use tokio::io::AsyncReadExt;

/// Returns the secret, or why it cannot be used.
pub(crate) async fn read(source: &SecretSource) -> Result<Vec<u8>, String> {
    let secret = match source {
        SecretSource::Env(name) => {
            let value = std::env::var_os(name);
            value.ok_or_else(|| format!("the environment has no variable `{name}`"))?.into_vec()
        }
        SecretSource::File(path) => {
            let found = file(path).await;
            found.map_err(|error| format!("cannot read `{path}`: {error}"))?
        }
    };
    let length = secret.len();
    if !(HOOK_SECRET_LEAST_BYTES..=HOOK_SECRET_BYTES).contains(&length) {
        let (least, most) = (HOOK_SECRET_LEAST_BYTES, HOOK_SECRET_BYTES);
        return Err(format!("the secret has {length} bytes or more; it must have {least} to {most}"));
    }
    Ok(secret)
}

/// Reads a regular file without the line break at its end. A device or a pipe may never end.
async fn file(path: &str) -> std::io::Result<Vec<u8>> {
    if !tokio::fs::metadata(path).await?.is_file() {
        return Err(std::io::Error::other("it is not a file"));
    }
    let mut secret = Vec::new();
    let most = HOOK_SECRET_BYTES as u64 + 2;
    tokio::fs::File::open(path).await?.take(most).read_to_end(&mut secret).await?;
    if secret.last() == Some(&b'\n') {
        secret.pop();
    }
    if secret.last() == Some(&b'\r') {
        secret.pop();
    }
    Ok(secret)
}
