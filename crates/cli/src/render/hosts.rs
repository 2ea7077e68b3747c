//! Owns how lists and counts are written: a few nodes one by one, many only counted.

use std::borrow::Borrow;
use std::fmt::Display;

use downbeat_api::FewNodes;

/// How much of a long list is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    Few,
    /// All of it.
    All,
}

impl Rows {
    pub(crate) fn of(all: bool) -> Self {
        if all { Rows::All } else { Rows::Few }
    }
}

/// `1 wave`, `3 waves`.
pub(crate) fn plural<N: Copy + Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    if count == N::from(1) { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// `20 of 5000`; only `20` if the total is unknown.
pub(crate) fn shown_of(shown: usize, total: Option<u64>) -> String {
    total.map_or_else(|| shown.to_string(), |total| format!("{shown} of {total}"))
}

/// `2 failed, 1 skipped`; zeros are left out.
pub(crate) fn counts(parts: &[(u64, &str)]) -> String {
    let parts = parts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}"));
    parts.collect::<Vec<_>>().join(", ")
}

/// Hostnames that are listed one by one; the others are only counted.
const MOST_NAMED: usize = 8;

/// `web-01, web-02`, or `web-01, … and 7 more`.
pub(crate) fn hosts<S: Borrow<str>>(names: &[S], rows: Rows) -> String {
    if rows == Rows::All || names.len() <= MOST_NAMED {
        return names.join(", ");
    }
    let shown = MOST_NAMED - 2;
    format!("{} and {} more", names[..shown].join(", "), names.len() - shown)
}

/// The same for nodes that are counted and not all named.
pub(crate) fn few(nodes: &FewNodes, rows: Rows) -> String {
    let named = &nodes.nodes;
    let more = usize::try_from(nodes.count).unwrap_or(usize::MAX).saturating_sub(named.len());
    if more == 0 {
        return hosts(named, rows);
    }
    let shown = if rows == Rows::All { named.len() } else { named.len().min(MOST_NAMED - 2) };
    format!("{} and {} more", named[..shown].join(", "), more + named.len() - shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_counted_and_a_short_one_is_not() {
        let names = |count: usize| (1..=count).map(|n| format!("w{n}")).collect::<Vec<_>>();
        assert_eq!(hosts(&names(8), Rows::Few), "w1, w2, w3, w4, w5, w6, w7, w8");
        assert_eq!(hosts(&names(9), Rows::Few), "w1, w2, w3, w4, w5, w6 and 3 more");
        assert_eq!(hosts(&names(300), Rows::All).split(", ").count(), 300);
        let many = FewNodes { count: 300, nodes: names(20) };
        assert_eq!(few(&many, Rows::Few), "w1, w2, w3, w4, w5, w6 and 294 more");
        assert!(few(&many, Rows::All).ends_with("w20 and 280 more"));
        assert_eq!(few(&FewNodes { count: 2, nodes: names(2) }, Rows::Few), "w1, w2");
    }
}
