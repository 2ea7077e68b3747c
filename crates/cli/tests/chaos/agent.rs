//! Owns one agent process; some live on a small disk, some in a network of their own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use nix::sys::signal::Signal;

use crate::network::Network;
use crate::server::log;
use crate::support::{SmallDisk, signal};

const DISK_MEBIBYTES: usize = 4;

#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) name: String,
    directory: PathBuf,
    site: String,
    servers: String,
    child: Mutex<Option<Child>>,
    pub(crate) hurt: tokio::sync::Mutex<()>,
    pub(crate) disk: Option<SmallDisk>,
    pub(crate) network: Option<Network>,
}

/// What is special about an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Surroundings {
    pub(crate) small_disk: bool,
    pub(crate) own_network: bool,
}

impl Agent {
    /// `ports` are those of the servers, in the order in which this agent tries them.
    pub(crate) fn new(name: &str, base: &Path, ports: &[u16], surroundings: Surroundings) -> Self {
        let directory = base.join(name);
        let root = nix::unistd::geteuid().is_root();
        let disk = (surroundings.small_disk && root).then(|| SmallDisk::mount(&directory, DISK_MEBIBYTES));
        let network = if surroundings.own_network { Network::make() } else { None };
        let host = network.as_ref().map_or_else(|| "127.0.0.1".to_owned(), Network::gateway);
        let servers: Vec<String> = ports.iter().map(|port| format!("{host}:{port}")).collect();
        Self {
            name: name.to_owned(),
            directory: base.to_owned(),
            site: base.display().to_string(),
            servers: servers.join(","),
            child: Mutex::new(None),
            hurt: tokio::sync::Mutex::default(),
            disk,
            network,
        }
    }

    pub(crate) fn start(&self) {
        let mut child = self.child.lock().unwrap();
        if child.is_some() {
            return;
        }
        let program = env!("CARGO_BIN_EXE_downbeat");
        let mut command = match &self.network {
            None => Command::new(program),
            Some(network) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{}", network.name)).arg(program);
                command
            }
        };
        let started = command
            .args(["agent", "--server", &self.servers, "--hostname", &self.name, "--groups", "web"])
            .args(["--allow", "exec", "--pass-env", "DOWNBEAT_TEST_*", "--slots", "4", "--data"])
            .arg(self.directory.join(&self.name).join("data"))
            .env("DOWNBEAT_TEST_SITE", &self.site)
            .env("DOWNBEAT_TEST_NODE", &self.name)
            .current_dir(&self.directory)
            .stdout(Stdio::null())
            .stderr(log(&self.directory, &self.name))
            .spawn()
            .unwrap();
        *child = Some(started);
    }

    pub(crate) fn signal(&self, what: Signal) {
        if let Some(child) = &*self.child.lock().unwrap() {
            signal(child.id().cast_signed(), what);
        }
    }

    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Forgets a process that ended by itself; answers whether there was one.
    pub(crate) fn reap(&self) -> bool {
        let mut child = self.child.lock().unwrap();
        let ended = child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some());
        if ended {
            *child = None;
        }
        ended
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}
