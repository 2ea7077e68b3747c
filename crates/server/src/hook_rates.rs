//! Owns how many requests each HTTP trigger has accepted of late.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use downbeat_core::Timestamp;
use downbeat_core::trigger::Bucket;

/// Paths that are remembered before those that were not used for a second are forgotten.
const REMEMBERED: usize = 1_000;

/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct HookRates(Arc<Mutex<HashMap<String, Bucket>>>);

impl HookRates {
    /// Counts a request, and returns whether it is accepted.
    pub(crate) fn take(&self, path: &str, per_second: u32, now: Timestamp) -> bool {
        let mut buckets = self.0.lock().expect("nothing panics while it holds the rates");
        if buckets.len() >= REMEMBERED && !buckets.contains_key(path) {
            buckets.retain(|_, bucket| !bucket.is_full(per_second, now));
        }
        buckets.entry(path.to_owned()).or_insert_with(|| Bucket::new(per_second, now)).take(per_second, now)
    }
}
