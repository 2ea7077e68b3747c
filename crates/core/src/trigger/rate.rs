//! Bounds how often something happens: so many times a second on average, and as many at once.

use jiff::Timestamp;

/// What is left of a rate. It starts full.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    left: f64,
    at: Timestamp,
}

impl Bucket {
    pub fn new(per_second: u32, now: Timestamp) -> Self {
        Self { left: f64::from(per_second), at: now }
    }

    /// Takes one from the bucket, and returns whether there was one. A clock that goes back adds nothing.
    pub fn take(&mut self, per_second: u32, now: Timestamp) -> bool {
        let most = f64::from(per_second);
        let passed = now.duration_since(self.at).as_secs_f64().max(0.0);
        self.left = (self.left + passed * most).min(most);
        self.at = now;
        let is_left = self.left >= 1.0;
        if is_left {
            self.left -= 1.0;
        }
        is_left
    }

    /// Returns whether the bucket is as good as a new one.
    pub fn is_full(&self, per_second: u32, now: Timestamp) -> bool {
        let most = f64::from(per_second);
        self.left + now.duration_since(self.at).as_secs_f64().max(0.0) * most >= most
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn a_burst_of_the_rate_is_accepted_then_the_rate_itself() {
        let start = Timestamp::UNIX_EPOCH;
        let after = |millis| start + SignedDuration::from_millis(millis);
        let mut bucket = Bucket::new(10, start);
        let mut taken = |at: Timestamp| (0..1_000).filter(|_| bucket.take(10, at)).count();
        // Time, and how many of 1,000 are accepted then.
        for (millis, expected) in
            [(0, 10), (50, 0), (100, 1), (1_100, 10), (60_000, 10), (59_000, 0), (60_000, 10)]
        {
            assert_eq!(taken(after(millis)), expected, "after {millis} ms");
        }
    }

    #[test]
    fn a_bucket_that_was_not_used_for_a_second_is_as_good_as_new() {
        let (start, second) = (Timestamp::UNIX_EPOCH, SignedDuration::from_secs(1));
        let mut bucket = Bucket::new(5, start);
        assert!(bucket.is_full(5, start));
        while bucket.take(5, start) {}
        assert!(!bucket.is_full(5, start));
        assert!(bucket.is_full(5, start + second));
    }
}
