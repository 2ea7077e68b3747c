//! Owns the timer of all schedules: which keys are due. Setting a key and taking the due ones costs the logarithm of the
//! number of keys; keys that are not due cost nothing.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

/// Keys, each with the time at which it is due.
#[derive(Clone, Debug)]
pub struct Timer<K> {
    by_time: BTreeSet<(Timestamp, K)>,
    by_key: BTreeMap<K, Timestamp>,
}

impl<K> Default for Timer<K> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new(), by_key: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Timer<K> {
    /// Sets the time of a key, or removes the key.
    pub fn set(&mut self, key: K, at: Option<Timestamp>) {
        if let Some(former) = self.by_key.remove(&key) {
            self.by_time.remove(&(former, key.clone()));
        }
        if let Some(at) = at {
            self.by_key.insert(key.clone(), at);
            self.by_time.insert((at, key));
        }
    }

    /// Returns the time of a key.
    pub fn time(&self, key: &K) -> Option<Timestamp> {
        self.by_key.get(key).copied()
    }

    /// Returns the time of the key that is due first.
    pub fn next(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Removes and returns the key that is due first, if it is due.
    pub fn take_due(&mut self, now: Timestamp) -> Option<(Timestamp, K)> {
        if self.next()? > now {
            return None;
        }
        let (at, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some((at, key))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_timer_agrees_with_a_loop_over_all_keys(steps in prop::collection::vec((0_u8..20, 0_i64..100, 0_u8..3), 0..200)) {
            let (mut timer, mut slow) = (Timer::default(), BTreeMap::new());
            for (key, second, action) in steps {
                let at = Timestamp::from_second(second).unwrap();
                match action {
                    0 => {
                        timer.set(key, Some(at));
                        slow.insert(key, at);
                    }
                    1 => {
                        timer.set(key, None);
                        slow.remove(&key);
                    }
                    _ => {
                        let mut due: Vec<(Timestamp, u8)> =
                            slow.iter().filter(|(_, due)| **due <= at).map(|(key, due)| (*due, *key)).collect();
                        due.sort();
                        due.iter().for_each(|(_, key)| {
                            slow.remove(key);
                        });
                        let taken: Vec<(Timestamp, u8)> = std::iter::from_fn(|| timer.take_due(at)).collect();
                        prop_assert_eq!(taken, due);
                    }
                }
                prop_assert_eq!(timer.next(), slow.values().min().copied());
            }
        }
    }
}
