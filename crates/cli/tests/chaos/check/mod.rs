//! The checker: a function of the evidence, and nothing else. It knows the rules of the product's language and none of
//! its code.

mod barriers;
mod feed;
mod order;
mod records;
mod replay;
#[cfg(test)]
mod schedule_tests;
mod schedules;
mod standing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod walk_tests;

use std::fmt;

use crate::evidence::Evidence;

/// A rule that does not hold, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) rule: &'static str,
    pub(crate) text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.text)
    }
}

/// The list of violations.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Violation>);

impl Findings {
    fn note(&mut self, rule: &'static str, text: impl Into<String>) {
        self.0.push(Violation { rule, text: text.into() });
    }
}

/// Returns all violations.
pub(crate) fn check(evidence: &Evidence) -> Vec<Violation> {
    let mut findings = Findings::default();
    records::submissions(evidence, &mut findings);
    records::ends(evidence, &mut findings);
    records::against_book(evidence, &mut findings);
    order::attempts(evidence, &mut findings);
    order::lanes(evidence, &mut findings);
    barriers::hold(evidence, &mut findings);
    barriers::exclusive(evidence, &mut findings);
    feed::gapless(evidence, &mut findings);
    feed::watched(evidence, &mut findings);
    replay::explains(evidence, &mut findings);
    standing::walks(evidence, &mut findings);
    standing::deleted(evidence, &mut findings);
    schedules::fire(evidence, &mut findings);
    findings.0
}
