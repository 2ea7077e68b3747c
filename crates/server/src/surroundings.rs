//! Owns what a server takes from outside besides its store and its sockets: the time of day and chance. A simulation
//! brings its own, and the same seed gives the same server.

use std::sync::{Arc, Mutex, PoisonError};

use downbeat_core::{Dice, Timestamp};

use crate::clock::Wall;

/// See the module.
#[derive(Clone)]
pub struct Surroundings {
    /// This machine's clock.
    pub wall: Wall,
    /// Where all of this server's chance comes from.
    pub seed: u64,
}

impl std::fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl Default for Surroundings {
    /// The real ones: the only place where the server asks the system for the time and for chance.
    fn default() -> Self {
        Self { wall: Arc::new(Timestamp::now), seed: rand::random() }
    }
}

/// Gives everybody dice of their own; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Chance(Arc<Mutex<Dice>>);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Dice::new(seed))))
    }

    /// A seed for somebody's dice.
    pub(crate) fn seed(&self) -> u64 {
        // Dice that somebody dropped are dice still.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }

    pub(crate) fn dice(&self) -> Dice {
        Dice::new(self.seed())
    }
}
