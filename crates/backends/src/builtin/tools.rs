//! Owns the tools that built-in backends need: programs and a container engine, searched once, when an agent starts.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::docker::Engine;
use super::rke2::Rke2;

#[derive(Clone, Debug, Default)]
pub struct Tools {
    pub apt_get: Option<PathBuf>,
    pub systemctl: Option<PathBuf>,
    pub rke2: Option<PathBuf>,
    pub rke2_installer: Option<PathBuf>,
    pub engine: Option<Engine>,
}

impl Tools {
    /// Looks for the programs in `$PATH`, and for a container engine at the usual places.
    pub fn search() -> Self {
        let path = env::var_os("PATH").unwrap_or_default();
        let dirs: Vec<PathBuf> = env::split_paths(&path).filter(|dir| dir.is_absolute()).collect();
        let find = |name: &str| dirs.iter().map(|dir| dir.join(name)).find(|file| is_program(file));
        let installers = Rke2::INSTALLERS.iter().map(PathBuf::from);
        Self {
            apt_get: find("apt-get"),
            systemctl: find("systemctl"),
            rke2: find("rke2"),
            rke2_installer: installers.into_iter().find(|file| is_program(file)),
            engine: Engine::found(),
        }
    }
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
