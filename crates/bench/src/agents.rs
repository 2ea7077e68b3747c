//! Owns agents as separate processes, as on real machines: their CPU time is distinguished from that of the server and
//! of the bench.

use std::process::{Child, Stdio};
use std::time::Duration;

use super::process;
use super::server::{ONLINE, cannot};
use super::site::Site;
use crate::failure::Result;

/// The agents of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fleet {
    pub nodes: u32,
    /// The slots of each agent.
    pub slots: u32,
}

/// Running agents. Dropping this ends them.
#[derive(Debug)]
pub(super) struct Agents {
    children: Vec<Child>,
}

impl Agents {
    /// Starts the agents and waits until the server sees all of them.
    pub(super) async fn join(site: &Site, fleet: Fleet) -> Result<Self> {
        let mut agents = Self { children: Vec::new() };
        for number in 0..fleet.nodes {
            agents.children.push(start(site, number, fleet.slots)?);
        }
        site.first().reached(ONLINE, f64::from(fleet.nodes), Duration::from_millis(20)).await?;
        Ok(agents)
    }

    pub(super) fn cpu_seconds(&self) -> f64 {
        self.children.iter().map(|child| process::cpu_seconds(child.id())).sum()
    }

    /// Returns the time of the processes that they started and that have ended.
    pub(super) fn work_cpu_seconds(&self) -> f64 {
        self.children.iter().map(|child| process::children_cpu_seconds(child.id())).sum()
    }

    pub(super) fn rss_bytes(&self) -> u64 {
        self.children.iter().map(|child| process::rss_bytes(child.id())).sum()
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(site: &Site, number: u32, slots: u32) -> Result<Child> {
    let (name, directory) = (format!("agent-{number}"), site.directory());
    process::this_program()?
        .args(["agent", "--server", &site.first().grpc, "--hostname", &name, "--slots", &slots.to_string()])
        .args(process::stop_with_this())
        .args(["--allow", "exec", "--log-level", "warn", "--data"])
        .arg(directory.join(&name))
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(process::log_file(directory.join(format!("{name}.log")))?)
        .spawn()
        .map_err(|error| cannot("start an agent", &error))
}
