//! Owns the index of triggers by what they wait for, so that a request or an event costs only the jobs that it starts.

use std::collections::{BTreeSet, HashMap};

use downbeat_core::ids::ClusterId;
use downbeat_core::job::JobKey;
use downbeat_core::spec::{EventKind, Trigger};

/// What a trigger waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// A request to a path.
    Path(String),
    /// The end of a run of a job.
    Job(JobKey),
    /// An event of a cluster.
    Event(ClusterId, EventKind),
}

/// The jobs that wait for each source.
#[derive(Debug, Default)]
pub(super) struct Index(HashMap<Source, BTreeSet<JobKey>>);

fn sources(key: &JobKey, triggers: &[Trigger]) -> impl Iterator<Item = Source> {
    triggers.iter().map(|trigger| match trigger {
        Trigger::Http(trigger) => Source::Path(trigger.path.clone()),
        Trigger::Job(trigger) => Source::Job(JobKey::new(key.cluster, trigger.name.as_str())),
        Trigger::Event(trigger) => Source::Event(key.cluster, trigger.kind),
    })
}

impl Index {
    pub(super) fn insert(&mut self, key: &JobKey, triggers: &[Trigger]) {
        for source in sources(key, triggers) {
            self.0.entry(source).or_default().insert(key.clone());
        }
    }

    pub(super) fn remove(&mut self, key: &JobKey, triggers: &[Trigger]) {
        for source in sources(key, triggers) {
            if let Some(jobs) = self.0.get_mut(&source) {
                jobs.remove(key);
                if jobs.is_empty() {
                    self.0.remove(&source);
                }
            }
        }
    }

    /// Returns whether any job waits for events, and not only for requests.
    pub(super) fn follow_events(&self) -> bool {
        self.0.keys().any(|source| !matches!(source, Source::Path(_)))
    }

    pub(super) fn get(&self, source: &Source) -> Option<&BTreeSet<JobKey>> {
        self.0.get(source)
    }
}
