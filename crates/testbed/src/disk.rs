//! A file system of a few MiB that can be filled.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted file system. It is unmounted when this is dropped.
#[derive(Debug)]
pub struct SmallDisk {
    pub path: PathBuf,
    bytes: usize,
}

impl SmallDisk {
    /// Needs root.
    pub fn mount(at: &Path, mebibytes: usize) -> Self {
        std::fs::create_dir_all(at).unwrap();
        let size = format!("size={mebibytes}m");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).status().unwrap();
        assert!(mounted.success(), "needs root to mount a small file system: run `make test` as root");
        Self { path: at.to_owned(), bytes: mebibytes * 1024 * 1024 }
    }

    fn ballast(&self) -> PathBuf {
        self.path.join("ballast")
    }

    pub fn fill(&self) {
        // The write must fail with `no space left`.
        let _ = std::fs::write(self.ballast(), vec![0_u8; self.bytes]);
    }

    /// Frees the space again.
    pub fn empty(&self) {
        let _ = std::fs::remove_file(self.ballast());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}
