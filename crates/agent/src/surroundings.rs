//! Owns the environment of an agent except servers: clock, randomness, disk, host. The system provides it, or
//! a simulation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs};

use async_trait::async_trait;
pub use downbeat_backends::Wall;
use downbeat_backends::{
    Backend, Deadlines, DeclaredBackend, Environment, Guard, Identity, Ledger, Tools, boot_id, boot_time,
    builtin,
};
use downbeat_core::Dice;
use futures_util::future::join_all;
use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use crate::error::Error;
use crate::private;
use crate::settings::Settings;

#[derive(Clone)]
pub struct Surroundings {
    pub wall: Wall,
    /// Seeds all random choices of this agent.
    pub seed: u64,
    pub disk: Disk,
    pub host: Arc<dyn Host>,
}

/// How results are written to disk, and outputs are read from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// By a thread of its own, in batches.
    Thread,
    /// By the caller, at once: for simulations, which have one thread.
    Inline,
}

#[async_trait]
pub trait Host: Send + Sync + fmt::Debug + 'static {
    /// Returns all backends that this machine has the tools for.
    fn backends(&self) -> Vec<Arc<dyn Backend>>;
    fn capabilities(&self) -> BTreeMap<String, Value>;
    /// Returns an id for a new installation. It is a secret: knowing it is enough to take over the node.
    fn draw_instance(&self, dice: &mut Dice) -> Uuid {
        dice.uuid()
    }
    /// Returns the id of the machine's current boot, if known.
    fn boot(&self) -> Option<Uuid> {
        None
    }
    /// Ends work that an earlier run of the agent left running, and returns its identities.
    async fn sweep(&self, grace: Duration) -> Vec<Identity>;

    /// Kills all processes of running work at once. The next start removes containers.
    async fn kill_all(&self) {}

    /// Returns the environment of programs that work starts.
    fn environment(&self) -> Environment {
        Environment::default()
    }

    /// Returns the time since boot, including suspended time; `None` on a host that is never suspended.
    fn boot_time(&self) -> Option<Duration> {
        None
    }

    /// Returns a guard for one piece of work, which ends it when the agent cannot; `None` if the host has
    /// none.
    fn guard(&self, _: Deadlines) -> Option<Guard> {
        None
    }

    /// Returns the problems of this machine, for users.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Surroundings {
    /// Returns the real environment; the ledger of processes is in the agent's data directory.
    pub(crate) fn of_system(settings: &Settings) -> Result<Self, Error> {
        let data: &Path = &settings.data;
        private::claim(data).map_err(|error| Error::Data { path: data.to_owned(), error })?;
        let ledger = Arc::new(Ledger::open(&data.join("running"))?);
        let mut backends = builtin(&ledger, &Tools::search(), &settings.backend, data);
        backends.extend(settings.backends.iter().map(|declared| {
            Arc::new(DeclaredBackend { declared: declared.clone(), ledger: ledger.clone() })
                as Arc<dyn Backend>
        }));
        let machine = Machine {
            ledger,
            backends,
            environment: Environment::of_process(&settings.pass_env),
            guard: settings.guard.clone(),
        };
        Ok(Self {
            wall: Arc::new(Timestamp::now),
            seed: rand::random(),
            disk: Disk::Thread,
            host: Arc::new(machine),
        })
    }
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wall: _, seed, disk, host } = self;
        f.debug_struct("Surroundings")
            .field("seed", seed)
            .field("disk", disk)
            .field("host", host)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(crate) struct Machine {
    ledger: Arc<Ledger>,
    backends: Vec<Arc<dyn Backend>>,
    environment: Environment,
    guard: Option<PathBuf>,
}

#[async_trait]
impl Host for Machine {
    fn backends(&self) -> Vec<Arc<dyn Backend>> {
        self.backends.clone()
    }

    fn capabilities(&self) -> BTreeMap<String, Value> {
        found_capabilities()
    }

    async fn kill_all(&self) {
        self.ledger.kill_all().await;
    }

    /// Not from `dice`: session ids are drawn from them and are not secret.
    fn draw_instance(&self, _: &mut Dice) -> Uuid {
        Uuid::new_v4()
    }

    fn boot(&self) -> Option<Uuid> {
        Uuid::parse_str(&boot_id()?).ok()
    }

    async fn sweep(&self, grace: Duration) -> Vec<Identity> {
        let by_backends = join_all(self.backends.iter().map(|backend| backend.sweep()));
        let (mut found, more) = tokio::join!(self.ledger.sweep(grace), by_backends);
        found.extend(more.into_iter().flatten());
        found
    }

    fn environment(&self) -> Environment {
        self.environment.clone()
    }

    fn boot_time(&self) -> Option<Duration> {
        Some(boot_time())
    }

    fn guard(&self, deadlines: Deadlines) -> Option<Guard> {
        Some(Guard::new(self.guard.clone()?, deadlines))
    }

    fn problems(&self) -> Vec<String> {
        self.ledger.problem().into_iter().collect()
    }
}

fn found_capabilities() -> BTreeMap<String, Value> {
    let mut found = BTreeMap::from([
        ("os".to_owned(), Value::from(std::env::consts::OS)),
        ("arch".to_owned(), Value::from(std::env::consts::ARCH)),
    ]);
    if let Ok(cpus) = std::thread::available_parallelism() {
        found.insert("cpu".to_owned(), Value::from(cpus.get()));
    }
    if let Some(bytes) = fs::read_to_string("/proc/meminfo").ok().and_then(|text| memory_bytes(&text)) {
        found.insert("memory_bytes".to_owned(), Value::from(bytes));
    }
    if let Ok(kernel) = fs::read_to_string("/proc/sys/kernel/osrelease") {
        found.insert("kernel".to_owned(), Value::from(kernel.trim()));
    }
    found
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(memory_bytes("MemTotal:       2048 kB\nMemFree: 1 kB\n"), Some(2 * 1024 * 1024));
    }
}
