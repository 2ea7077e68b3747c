//! The seed of a randomized test.

/// Returns the seed of `DOWNBEAT_TEST_SEED`, or a new one. It is printed, so that a failure can be repeated.
pub fn seed() -> u64 {
    let seed = std::env::var("DOWNBEAT_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(uuid::Uuid::new_v4().as_fields().0));
    println!("DOWNBEAT_TEST_SEED={seed}");
    seed
}
