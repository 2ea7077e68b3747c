//! The checkers: what must hold after every seed, from three sources that have to agree: the tables, the feed that
//! explains them, and what really happened on the hosts.

mod evidence;
mod feed;
mod holds;
mod limits;
mod nodes;
mod order;
mod promises;
mod story;
mod terms;
mod work;

use std::fmt;

pub(crate) use evidence::Evidence;

/// Who found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checker {
    /// Nothing of the product panics.
    Panics,
    /// Every run ends, and every accepted one exists.
    Ends,
    /// The feed has no gap, and replaying it gives the tables.
    Feed,
    /// No two attempts of a step hold a lease at once, and attempts follow the rules of retry and delivery.
    Attempts,
    /// Barriers hold, and no step runs before what it waits for.
    Order,
    /// No result is applied twice, none is made up, and none that was acknowledged or kept is lost.
    Results,
    /// No lease is ended before its term is over.
    Terms,
    /// A run that holds its nodes has them to itself, and no more runs are under way than may.
    Holds,
    /// Limits hold, by the records and on the hosts.
    Limits,
    /// A node that is alive is nobody else's.
    Nodes,
    /// What really ran had the right to, and what must not overlap did not.
    Work,
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub checker: Checker,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.checker, self.what)
    }
}

/// Collects what one checker finds.
pub(crate) struct Findings {
    checker: Checker,
    found: Vec<Violation>,
}

impl Findings {
    fn of(checker: Checker) -> Self {
        Self { checker, found: Vec::new() }
    }

    fn add(&mut self, what: fmt::Arguments<'_>) {
        self.found.push(Violation { checker: self.checker, what: what.to_string() });
    }
}

/// Everything that is wrong, sorted by checker.
pub(crate) fn check(evidence: &Evidence) -> Vec<Violation> {
    let mut all = Vec::new();
    all.extend(promises::ends(evidence).found);
    all.extend(feed::check(evidence).found);
    all.extend(order::attempts(evidence).found);
    all.extend(order::check(evidence).found);
    all.extend(promises::results(evidence).found);
    all.extend(holds::check(evidence).found);
    all.extend(limits::check(evidence).found);
    all.extend(nodes::check(evidence).found);
    all.extend(terms::check(evidence).found);
    all.extend(work::check(evidence).found);
    all.sort_by_key(|violation| violation.checker);
    all
}
