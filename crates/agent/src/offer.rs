//! Owns the offer of a node: its backends and the detected capabilities of its host.

use std::collections::HashMap;
use std::sync::Arc;

use downbeat_backends::Backend;
use downbeat_core::backend::{ActionSchema, BackendSchema, Catalogue, needs_allow};
use downbeat_core::nearest::advice;
use downbeat_core::node::{Description, check_json_bytes};

use crate::error::Error;
use crate::settings::Settings;
use crate::surroundings::Host;

#[derive(Debug)]
pub(crate) struct Offer {
    backends: HashMap<String, Offered>,
    pub(crate) description: Description,
}

#[derive(Debug)]
struct Offered {
    backend: Arc<dyn Backend>,
    schema: Arc<BackendSchema>,
}

impl Offer {
    pub(crate) fn new(settings: &Settings, host: &dyn Host) -> Result<Self, Error> {
        let all: Vec<Offered> = host
            .backends()
            .into_iter()
            .map(|backend| Offered { schema: Arc::new(backend.schema()), backend })
            .collect();
        let catalogue = Catalogue::builtin();
        let mut names: Vec<&str> = all.iter().map(|offered| offered.schema.name.as_str()).collect();
        for schema in catalogue.backends().iter().filter(|schema| !names.contains(&schema.name.as_str())) {
            // The same settings may serve different hosts: a known backend without tools is not an error.
            let backend = &schema.name;
            tracing::debug!(backend, "not offered: this host does not have the tools that it needs");
        }
        names.extend(catalogue.backends().iter().map(|schema| schema.name.as_str()));
        names.sort_unstable();
        names.dedup();
        known("allow", &settings.allow, &names)?;
        known("offer (`only`)", settings.only.as_deref().unwrap_or_default(), &names)?;
        let chosen: Vec<Offered> =
            all.into_iter().filter(|offered| chosen(settings, &offered.schema.name)).collect();

        if chosen.is_empty() {
            let only = settings.only.iter().flatten().map(String::as_str);
            let is_forbidden = |name: &&str| needs_allow(name) && !settings.allow.iter().any(|a| a == name);
            let forbidden: Vec<&str> = only.filter(is_forbidden).collect();
            if !forbidden.is_empty() {
                return Err(Error::NothingToOffer { names: forbidden.join(",") });
            }
            tracing::warn!(
                "this node offers no backend: the settings allow none that this host has the tools for"
            );
        }
        let mut capabilities = host.capabilities();
        capabilities.extend(settings.capabilities.clone());
        let backends = chosen.iter().map(|offered| offered.schema.clone()).collect();
        let description = Description { capabilities, backends, ..settings.description() };
        description.check()?;
        check_json_bytes(serde_json::to_string(&description).map_or(0, |json| json.len()))?;
        let backends = chosen.into_iter().map(|offered| (offered.schema.name.clone(), offered)).collect();
        Ok(Self { backends, description })
    }

    /// Returns the backend and its action. The error is for the job's author.
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
    let allowed = !needs_allow(name) || has(&settings.allow);
    allowed && settings.only.as_deref().is_none_or(has)
}

fn known(setting: &'static str, named: &[String], known: &[&str]) -> Result<(), Error> {
    match named.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let advice = advice(name, known, "backends");
            Err(Error::UnknownBackend { setting, name: name.clone(), advice })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use async_trait::async_trait;
    use downbeat_backends::{BackendSettings, Engine, Identity, Ledger, Tools, builtin};
    use downbeat_core::backend::all_that_need_allow;
    use serde_json::Value;

    use super::*;

    /// A host with some tools.
    #[derive(Debug)]
    struct Equipped(Vec<Arc<dyn Backend>>);

    #[async_trait]
    impl Host for Equipped {
        fn backends(&self) -> Vec<Arc<dyn Backend>> {
            self.0.clone()
        }

        fn capabilities(&self) -> BTreeMap<String, Value> {
            BTreeMap::new()
        }

        async fn sweep(&self, _: Duration) -> Vec<Identity> {
            Vec::new()
        }
    }

    fn offered_with(tools: &Tools, change: impl FnOnce(&mut Settings)) -> Result<String, Error> {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = Settings::new(dir.path().to_owned());
        change(&mut settings);
        let ledger = Arc::new(Ledger::open(dir.path()).unwrap());
        let host = Equipped(builtin(&ledger, tools, &BackendSettings::default(), dir.path()));
        let offer = Offer::new(&settings, &host)?;
        let names: Vec<&str> =
            offer.description.backends.iter().map(|backend| backend.name.as_str()).collect();
        Ok(names.join(" "))
    }

    fn offered(change: impl FnOnce(&mut Settings)) -> Result<String, Error> {
        offered_with(&Tools::default(), change)
    }

    #[test]
    fn a_backend_that_could_do_anything_is_offered_only_when_allowed() {
        assert_eq!(offered(|_| {}).unwrap(), "test ping");
        assert_eq!(offered(|s| s.allow = vec!["exec".to_owned()]).unwrap(), "test ping exec");
        let all = |s: &mut Settings| s.allow = all_that_need_allow().map(str::to_owned).collect();
        assert_eq!(offered(all).unwrap(), "test ping exec file http");
    }

    #[test]
    fn containers_are_offered_when_allowed_and_an_engine_is_known() {
        let engine = Tools { engine: Engine::read("/nowhere/docker.sock").ok(), ..Tools::default() };
        let allowed = |s: &mut Settings| s.allow = vec!["docker".to_owned()];
        assert_eq!(offered_with(&engine, |_| {}).unwrap(), "test ping");
        assert_eq!(offered(allowed).unwrap(), "test ping");
        assert_eq!(offered_with(&engine, allowed).unwrap(), "test ping docker");
    }

    #[test]
    fn backends_whose_tools_the_host_has_are_offered() {
        let apt_get = Tools { apt_get: Some("/usr/bin/apt-get".into()), ..Tools::default() };
        assert_eq!(offered_with(&apt_get, |_| {}).unwrap(), "test ping apt");
        let only = |s: &mut Settings| s.only = Some(vec!["systemd".to_owned(), "apt".to_owned()]);
        assert_eq!(offered_with(&apt_get, only).unwrap(), "apt");
    }

    #[test]
    fn rke2_needs_systemctl_and_something_of_its_own() {
        let systemctl = Tools { systemctl: Some("/bin/systemctl".into()), ..Tools::default() };
        assert_eq!(offered_with(&systemctl, |_| {}).unwrap(), "test ping systemd");
        let installer = Tools { rke2_installer: Some("/x".into()), ..systemctl };
        assert_eq!(offered_with(&installer, |_| {}).unwrap(), "test ping systemd rke2");
        let alone = Tools { rke2: Some("/x".into()), ..Tools::default() };
        assert_eq!(offered_with(&alone, |_| {}).unwrap(), "test ping");
    }

    #[test]
    fn a_declared_backend_needs_no_allow_and_only_narrows_it() {
        let declared = serde_json::json!({"actions": {"now": {"argv": ["/bin/true"]}}});
        let declared = downbeat_backends::Declared::read("backup", &declared).unwrap();
        for (only, offers) in [("backup", true), ("ping", false)] {
            let dir = tempfile::tempdir().unwrap();
            let mut settings = Settings::new(dir.path().to_owned());
            settings.only = Some(vec![only.to_owned()]);
            settings.backends = vec![declared.clone()];
            let host = crate::surroundings::Surroundings::of_system(&settings).unwrap().host;
            let offer = Offer::new(&settings, host.as_ref()).unwrap();
            assert_eq!(offer.action("backup", "now").is_ok(), offers, "{only}");
        }
    }

    #[test]
    fn only_narrows_and_allows_nothing() {
        let only = |s: &mut Settings| s.only = Some(vec!["ping".to_owned(), "exec".to_owned()]);
        assert_eq!(offered(only).unwrap(), "ping");
    }

    #[test]
    fn an_agent_whose_settings_leave_no_backend_does_not_start() {
        let only = |s: &mut Settings| s.only = Some(vec!["exec".to_owned()]);
        assert_eq!(
            offered(only).unwrap_err().to_string(),
            "`only` leaves no backend: exec can run any command and must be allowed; add --allow exec"
        );
        // The same settings may serve different hosts.
        assert_eq!(offered(|s| s.only = Some(vec!["apt".to_owned()])).unwrap(), "");
    }

    #[test]
    fn a_backend_that_does_not_exist_stops_the_start() {
        let error = offered(|s| s.allow = vec!["exce".to_owned()]).unwrap_err();
        assert_eq!(error.to_string(), "cannot allow backend `exce`: no such backend; did you mean `exec`?");
    }
}
