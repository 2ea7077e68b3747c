//! The checkers test what must hold after every seed. Their three sources have to agree: the tables, the feed, and what
//! really happened on the hosts.

mod attempts;
mod clusters;
mod evidence;
mod feed;
mod holds;
mod life;
mod limits;
mod nodes;
mod order;
mod promises;
mod schedules;
mod standing;
mod terms;
mod work;

use std::fmt;

pub(crate) use evidence::{Contents, Evidence};
pub(crate) use standing::Follower;

/// A checker, named by what it checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checker {
    /// The product does not panic.
    Panics,
    /// Every run ends, and every accepted one exists.
    Ends,
    /// The feed has no gap, and replaying it results in the tables.
    Feed,
    /// No two attempts of a step have a lease at once, and attempts follow the rules of retry and delivery.
    Attempts,
    /// Barriers hold, and no step starts before its dependencies have ended.
    Order,
    /// No result is applied twice or invented, and no acknowledged or stored result is lost.
    Results,
    /// No lease ends before it expires.
    Terms,
    /// An exclusive run has its nodes to itself, and `max_runs` is respected.
    Holds,
    /// Limits hold, by the records and on the hosts.
    Limits,
    /// A node that is alive neither counts as silent nor is given to another installation.
    Nodes,
    /// A node that is gone goes offline in time, and its leases end in time. So do those of a node that never reports.
    Detection,
    /// Nodes carry out standing tasks in order, one at a time, and none twice without a reason.
    Standing,
    /// Schedules start each run once, and miss none.
    Schedules,
    /// Runs go through their states in order, and their constraints hold.
    Life,
    /// A deleted cluster is gone.
    Clusters,
    /// A replica has what its primary has.
    Replica,
    /// Only leased work ran, and work that must not overlap did not.
    Work,
}

impl Checker {
    pub const ALL: [Self; Self::Work as usize + 1] = [
        Self::Panics,
        Self::Ends,
        Self::Feed,
        Self::Attempts,
        Self::Order,
        Self::Results,
        Self::Terms,
        Self::Holds,
        Self::Limits,
        Self::Nodes,
        Self::Detection,
        Self::Standing,
        Self::Schedules,
        Self::Life,
        Self::Clusters,
        Self::Replica,
        Self::Work,
    ];
}

/// A broken rule.
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

/// Collects the violations that one checker finds.
pub(crate) struct Findings {
    checker: Checker,
    found: Vec<Violation>,
}

impl Findings {
    fn of(checker: Checker) -> Self {
        Self { checker, found: Vec::new() }
    }

    fn add(&mut self, what: String) {
        self.found.push(Violation { checker: self.checker, what });
    }
}

/// Returns all violations, sorted by checker.
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
    all.extend(standing::check(evidence).found);
    all.extend(schedules::check(evidence).found);
    all.extend(life::check(evidence).found);
    all.extend(clusters::check(evidence).found);
    all.extend(terms::check(evidence).found);
    all.extend(work::check(evidence).found);
    all.sort_by_key(|violation| violation.checker);
    all
}
