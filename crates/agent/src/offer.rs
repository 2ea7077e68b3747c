//! Owns what a node offers: its backends, and what it found out about its host.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::Arc;

use downbeat_backends::{Backend, Ledger, builtin};
use downbeat_core::backend::{ActionSchema, BackendSchema};
use downbeat_core::node::Description;
use serde_json::Value;

use crate::error::Error;
use crate::settings::Settings;

/// Backends that run anything at all: offered only when the settings name them.
const ONLY_WHEN_ALLOWED: [&str; 1] = ["exec"];

#[derive(Debug)]
pub(crate) struct Offer {
    backends: HashMap<String, Offered>,
    description: Description,
}

#[derive(Debug)]
struct Offered {
    backend: Arc<dyn Backend>,
    schema: BackendSchema,
}

impl Offer {
    pub(crate) fn new(settings: &Settings, ledger: &Arc<Ledger>) -> Result<Self, Error> {
        let all: Vec<Offered> = builtin(ledger)
            .into_iter()
            .map(|backend| Offered { schema: backend.schema(), backend })
            .collect();
        let names: Vec<&str> = all.iter().map(|offered| offered.schema.name.as_str()).collect();
        known("allow", &settings.allow, &names)?;
        known("offer (`only`)", settings.only.as_deref().unwrap_or_default(), &names)?;
        let chosen: Vec<Offered> =
            all.into_iter().filter(|offered| chosen(settings, &offered.schema.name)).collect();

        let mut capabilities = found_capabilities();
        capabilities.extend(settings.capabilities.clone());
        let description = Description {
            hostname: settings.hostname.clone(),
            groups: settings.groups.clone(),
            labels: settings.labels.clone(),
            capabilities,
            backends: chosen.iter().map(|offered| offered.schema.clone()).collect(),
            slots: settings.slots,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let backends = chosen.into_iter().map(|offered| (offered.schema.name.clone(), offered)).collect();
        Ok(Self { backends, description })
    }

    pub(crate) fn description(&self) -> &Description {
        &self.description
    }

    /// The error is for the one who wrote the job.
    pub(crate) fn action(
        &self,
        backend: &str,
        action: &str,
    ) -> Result<(&Arc<dyn Backend>, &ActionSchema), String> {
        let offered = self.backends.get(backend).ok_or_else(|| {
            format!("node `{}` does not offer backend `{backend}`", self.description.hostname)
        })?;
        let schema = offered
            .schema
            .action(action)
            .ok_or_else(|| format!("backend `{backend}` has no action `{action}`"))?;
        Ok((&offered.backend, schema))
    }
}

fn chosen(settings: &Settings, name: &str) -> bool {
    let has = |names: &[String]| names.iter().any(|named| named == name);
    let allowed = !ONLY_WHEN_ALLOWED.contains(&name) || has(&settings.allow);
    allowed && settings.only.as_deref().is_none_or(has)
}

fn known(setting: &'static str, named: &[String], known: &[&str]) -> Result<(), Error> {
    match named.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(Error::UnknownBackend { setting, name: name.clone(), known: known.join(", ") }),
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

    fn offered(change: impl FnOnce(&mut Settings)) -> Result<Vec<String>, Error> {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = Settings::new(dir.path().to_owned());
        change(&mut settings);
        let ledger = Arc::new(Ledger::open(dir.path()).unwrap());
        let offer = Offer::new(&settings, &ledger)?;
        Ok(offer.description().backends.iter().map(|backend| backend.name.clone()).collect())
    }

    #[test]
    fn what_runs_anything_is_offered_only_when_allowed() {
        assert_eq!(offered(|_| {}).unwrap(), ["test", "ping"]);
        assert_eq!(offered(|s| s.allow = vec!["exec".to_owned()]).unwrap(), ["test", "ping", "exec"]);
    }

    #[test]
    fn only_narrows_and_allows_nothing() {
        assert_eq!(offered(|s| s.only = Some(vec!["ping".to_owned(), "exec".to_owned()])).unwrap(), ["ping"]);
    }

    #[test]
    fn a_backend_that_does_not_exist_stops_the_start() {
        let error = offered(|s| s.allow = vec!["exce".to_owned()]).unwrap_err();
        assert_eq!(error.to_string(), "there is no backend `exce` to allow; there are: test, ping, exec");
    }

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(memory_bytes("MemTotal:       2048 kB\nMemFree: 1 kB\n"), Some(2 * 1024 * 1024));
    }
}
