//! Owns the shared parts of one simulation: true time, randomness, the trace, and the truth.

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

/// A host in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum HostId {
    Server(usize),
    Agent(usize),
}

impl std::fmt::Display for HostId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HostId::Server(number) => write!(f, "s{number}"),
            HostId::Agent(number) => write!(f, "a{number}"),
        }
    }
}

impl World {
    /// Must be called within the paused runtime.
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

    pub(crate) fn log(&self, what: std::fmt::Arguments<'_>) {
        self.trace.log(self.clock.elapsed(), what);
    }

    pub(crate) fn draw<T>(&self, with: impl FnOnce(&mut Dice) -> T) -> T {
        with(&mut self.dice.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true with a probability of `permille` / 1000.
    pub(crate) fn happens(&self, permille: u64) -> bool {
        permille > 0 && self.draw(|dice| dice.below(1_000)) < permille
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.draw(|dice| dice.below(bound))
    }

    /// Returns a random index of a list of this length.
    pub(crate) fn index(&self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("an index fits in usize")
    }

    pub(crate) fn up_to(&self, limit: Duration) -> Duration {
        self.draw(|dice| dice.up_to(limit))
    }

    pub(crate) fn truth<T>(&self, with: impl FnOnce(&mut Truth) -> T) -> T {
        with(&mut self.truth.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
