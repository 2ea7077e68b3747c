//! Owns a file system of a few MiB that can be filled, gone when the test is over.

use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug)]
pub(crate) struct SmallDisk {
    pub(crate) path: PathBuf,
    bytes: usize,
}

impl SmallDisk {
    pub(crate) fn mount(at: &Path, mebibytes: usize) -> Self {
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

    /// Leaves no room.
    pub(crate) fn fill(&self) {
        // It ends with `no space left`: that is what it is for.
        let _ = std::fs::write(self.ballast(), vec![0_u8; self.bytes]);
    }

    /// There is room again.
    pub(crate) fn empty(&self) {
        let _ = std::fs::remove_file(self.ballast());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}
