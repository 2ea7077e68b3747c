//! Checks the triggers of a job against those of other jobs.

use downbeat_core::job::JobKey;
use downbeat_core::spec::{Definition, Trigger};
use downbeat_core::trigger::circle;

use super::Service;
use super::jobs::invalid;
use crate::error::{Conflict, Result};
use crate::jobs::Source;

impl Service {
    /// Refuses paths that other jobs have, and circles. Of two requests at two servers at the same moment both pass here;
    /// the store refuses the second one (`triggers_seen`), which is then checked again.
    pub(super) fn check_triggers(&self, key: &JobKey, definition: &Definition) -> Result<()> {
        let jobs = &self.parts.jobs;
        for trigger in &definition.triggers {
            let Trigger::Http(http) = trigger else { continue };
            let others = jobs.waiting_for(&Source::Path(http.path.clone()));
            if let Some(other) = others.iter().map(|job| job.record.key()).find(|other| *other != key) {
                let (path, job) = (http.path.clone(), other.name.to_string());
                return Err(
                    Conflict::HookPath { path, job, cluster: self.cluster_name(other.cluster) }.into()
                );
            }
        }
        let of_definition = |definition: &Definition| -> Vec<String> {
            definition.triggers.iter().filter_map(Trigger::source).map(str::to_owned).collect()
        };
        let sources = |name: &str| {
            if *name == *key.name {
                return of_definition(definition);
            }
            let job = jobs.get(&JobKey::new(key.cluster, name));
            job.map(|job| of_definition(&job.record.current.definition)).unwrap_or_default()
        };
        match circle(&key.name, sources) {
            None => Ok(()),
            Some(circle) => {
                let circle = circle.join(" → ");
                Err(invalid("triggers", &format!("the jobs would start each other in a circle: {circle}")))
            }
        }
    }
}
