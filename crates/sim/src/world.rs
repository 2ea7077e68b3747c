//! Owns what all parts of one simulation share: true time, chance, the trace, and what really happened.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use downbeat_core::{Dice, Timestamp};

use crate::clock::TrueClock;
use crate::trace::Trace;
use crate::truth::Truth;

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) clock: TrueClock,
    pub(crate) trace: Trace,
    pub(crate) truth: Mutex<Truth>,
    dice: Mutex<Dice>,
}

/// A place in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
    Server(usize),
    Agent(usize),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Server(number) => write!(f, "s{number}"),
            Place::Agent(number) => write!(f, "a{number}"),
        }
    }
}

impl World {
    /// To be called within the paused runtime.
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            clock: TrueClock::start(),
            trace: Trace::default(),
            truth: Mutex::default(),
            dice: Mutex::new(Dice::new(seed)),
        })
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn say(&self, what: std::fmt::Arguments<'_>) {
        self.trace.say(self.clock.elapsed(), what);
    }

    pub(crate) fn draw<T>(&self, with: impl FnOnce(&mut Dice) -> T) -> T {
        with(&mut self.dice.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// True once in a thousand, `permille` times.
    pub(crate) fn happens(&self, permille: u64) -> bool {
        permille > 0 && self.draw(|dice| dice.below(1_000)) < permille
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.draw(|dice| dice.below(bound))
    }

    pub(crate) fn up_to(&self, limit: Duration) -> Duration {
        self.draw(|dice| dice.up_to(limit))
    }

    pub(crate) fn truth<T>(&self, with: impl FnOnce(&mut Truth) -> T) -> T {
        with(&mut self.truth.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
