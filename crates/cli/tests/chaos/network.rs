//! Owns networks of some agents' own: a namespace and a pair of virtual cables each, removed when the test is over.
//!
//! A cable that is down cuts both directions. One direction is cut by a wrong hardware address for the other end:
//! packets leave, do not arrive, and no error is returned.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

static MADE: AtomicU32 = AtomicU32::new(0);

const NOBODY: &str = "02:00:00:00:00:01";

/// A namespace with one cable to this machine.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) name: String,
    cable: String,
    subnet: String,
    here_address: String,
    there_address: String,
}

/// Which traffic is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Both,
    /// Requests of the agent do not arrive.
    Up,
    /// Responses to the agent do not arrive.
    Down,
}

fn ip(arguments: &str) -> bool {
    Command::new("ip")
        .args(arguments.split(' '))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn output(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

fn hardware_address(text: &str) -> String {
    let mut words = text.split_whitespace().skip_while(|word| *word != "link/ether").skip(1);
    words.next().unwrap_or_default().to_owned()
}

impl Network {
    /// Nothing where that is not possible: without root, or without `ip`.
    pub(crate) fn make() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            return None;
        }
        sweep();
        let (pid, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let subnet = format!("10.{}.{}", 100 + pid % 100, (pid / 100 * 16 + number) % 250);
        let mut network = Self {
            name: format!("downbeat-{pid}-{number}"),
            cable: format!("db{pid}n{number}"),
            subnet,
            here_address: String::new(),
            there_address: String::new(),
        };
        let Self { name, cable, subnet, .. } = &network;
        let made = ip(&format!("netns add {name}"))
            && ip(&format!("link add {cable} type veth peer name eth0 netns {name}"))
            && ip(&format!("addr add {subnet}.1/24 dev {cable}"))
            && ip(&format!("-n {name} addr add {subnet}.2/24 dev eth0"))
            && ip(&format!("-n {name} link set lo up"))
            && ip(&format!("-n {name} link set eth0 up"))
            && ip(&format!("link set {cable} up"));
        network.here_address = hardware_address(&output(&format!("link show {}", network.cable)));
        network.there_address = hardware_address(&output(&format!("-n {} link show eth0", network.name)));
        made.then_some(network)
    }

    /// This machine, as seen from inside.
    pub(crate) fn gateway(&self) -> String {
        format!("{}.1", self.subnet)
    }

    pub(crate) fn cut(&self, cut: Cut) {
        let Self { name, cable, subnet, .. } = self;
        match cut {
            Cut::Both => ip(&format!("link set {cable} down")),
            Cut::Up => {
                ip(&format!("-n {name} neigh replace {subnet}.1 lladdr {NOBODY} dev eth0 nud permanent"))
            }
            Cut::Down => ip(&format!("neigh replace {subnet}.2 lladdr {NOBODY} dev {cable} nud permanent")),
        };
    }

    pub(crate) fn heal(&self) {
        let Self { name, cable, subnet, here_address, there_address } = self;
        ip(&format!("link set {cable} up"));
        ip(&format!("-n {name} neigh replace {subnet}.1 lladdr {here_address} dev eth0 nud permanent"));
        ip(&format!("neigh replace {subnet}.2 lladdr {there_address} dev {cable} nud permanent"));
    }
}

/// Removes the networks of a test that was killed.
fn sweep() {
    for line in output("netns list").lines() {
        let name = line.split(' ').next().unwrap_or_default();
        let pid = name.strip_prefix("downbeat-").and_then(|rest| rest.split('-').next()?.parse().ok());
        if pid.is_some_and(|pid: i32| !downbeat_testbed::processes::is_alive(pid)) {
            ip(&format!("netns delete {name}"));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The cable goes with it, when the last process inside has ended.
        ip(&format!("link delete {}", self.cable));
        ip(&format!("netns delete {}", self.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a program inside can reach this machine and get a response.
    fn answers(network: &Network, port: u16) -> bool {
        let connect = format!("exec 3<>/dev/tcp/{}/{port}", network.gateway());
        Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", network.name))
            .args(["timeout", "1", "bash", "-c", &connect])
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success()
    }

    #[test]
    fn a_network_that_is_cut_lets_nothing_through_until_it_is_healed() {
        let Some(network) = Network::make() else { return };
        let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(answers(&network, port));
        for cut in [Cut::Both, Cut::Up, Cut::Down] {
            network.cut(cut);
            assert!(!answers(&network, port), "{cut:?}");
            network.heal();
            assert!(answers(&network, port), "healed after {cut:?}");
        }
    }
}
