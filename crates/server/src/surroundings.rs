//! Owns a server's inputs besides its store and its sockets: time, randomness, and the services that it calls for jobs. A simulation provides its
//! own; the same seed results in the same behaviour.

use std::sync::{Arc, Mutex, PoisonError};

use downbeat_core::{Dice, Timestamp};

use crate::clock::Wall;
use crate::outbound::Outside;

#[derive(Clone)]
pub struct Surroundings {
    pub wall: Wall,
    pub seed: u64,
    /// What answers the calls for jobs instead of the network, if it is set.
    pub outside: Option<Arc<dyn Outside>>,
}

impl std::fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl Default for Surroundings {
    /// The real ones: the only place where the server reads the system's time and randomness.
    fn default() -> Self {
        Self { wall: Arc::new(Timestamp::now), seed: rand::random(), outside: None }
    }
}

/// Creates separate dice for each part; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Chance(Arc<Mutex<Dice>>);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Dice::new(seed))))
    }

    /// Returns a seed for one part's dice.
    pub(crate) fn seed(&self) -> u64 {
        // A panic of another holder does not make the dice invalid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }

    pub(crate) fn dice(&self) -> Dice {
        Dice::new(self.seed())
    }
}
