//! Owns one agent; some run on a small disk, some in a network of their own.

use std::ops::Deref;
use std::path::Path;

use downbeat_testbed::{Daemon, SmallDisk};

use crate::network::Network;

const DISK_MEBIBYTES: usize = 4;

#[derive(Debug)]
pub(crate) struct Agent {
    // Dropped before its disk and network.
    daemon: Daemon,
    pub(crate) hurt: tokio::sync::Mutex<()>,
    pub(crate) disk: Option<SmallDisk>,
    pub(crate) network: Option<Network>,
}

impl Deref for Agent {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

/// Options of an agent.
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
        let mut daemon = Daemon::agent(base, name, &servers.join(","))
            .with(&["--groups", "web", "--allow", "exec", "--pass-env", "DOWNBEAT_TEST_*", "--slots", "4"])
            .with_env(&[("DOWNBEAT_TEST_SITE", &base.display().to_string()), ("DOWNBEAT_TEST_NODE", name)]);
        daemon.replace("--data", directory.join("data").display().to_string());
        if let Some(network) = &network {
            daemon = daemon.started_by(&["nsenter", &format!("--net=/run/netns/{}", network.name)]);
        }
        Self { daemon, hurt: tokio::sync::Mutex::default(), disk, network }
    }

    pub(crate) fn of_cluster(mut self, cluster: &str) -> Self {
        self.daemon = self.daemon.with(&["--cluster", cluster]);
        self
    }
}
