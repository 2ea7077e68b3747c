//! Owns the clock by which leases expire on the agent's side. It also counts the time that the machine is
//! suspended, as the server's clock does: an agent that wakes up must not use the rest of an expired lease.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::surroundings::Host;

#[derive(Debug)]
pub(crate) struct LeaseClock {
    host: Arc<dyn Host>,
    /// The time since boot when the clock was started; `None` on a host that is never suspended.
    boot: Option<Duration>,
    started: Instant,
}

impl LeaseClock {
    pub(crate) fn start(host: Arc<dyn Host>) -> Self {
        // In this order: a pause between the two makes deadlines earlier, never later.
        let boot = host.boot_time();
        Self { host, boot, started: Instant::now() }
    }

    pub(crate) fn now(&self) -> Instant {
        match (self.boot, self.host.boot_time()) {
            (Some(then), Some(now)) => self.started + now.saturating_sub(then),
            _ => Instant::now(),
        }
    }

    /// Converts a time of this clock to the time since boot.
    pub(crate) fn since_boot(&self, time: Instant) -> Option<Duration> {
        Some(self.boot? + time.saturating_duration_since(self.started))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use downbeat_backends::{Backend, Identity};
    use serde_json::Value;

    use super::*;

    #[derive(Debug)]
    struct Sleepy(Mutex<Duration>);

    #[async_trait]
    impl Host for Sleepy {
        fn backends(&self) -> Vec<Arc<dyn Backend>> {
            Vec::new()
        }

        fn capabilities(&self) -> BTreeMap<String, Value> {
            BTreeMap::new()
        }

        async fn sweep(&self, _: Duration) -> Vec<Identity> {
            Vec::new()
        }

        fn boot_time(&self) -> Option<Duration> {
            Some(*self.0.lock().unwrap())
        }
    }

    #[test]
    fn the_time_of_a_suspend_counts() {
        let host = Arc::new(Sleepy(Mutex::new(Duration::from_secs(1_000))));
        let clock = LeaseClock::start(host.clone());
        let before = clock.now();
        *host.0.lock().unwrap() += Duration::from_secs(3_600);
        assert_eq!(clock.now() - before, Duration::from_secs(3_600));
        assert_eq!(clock.since_boot(clock.now()), Some(Duration::from_secs(4_600)));
    }
}
