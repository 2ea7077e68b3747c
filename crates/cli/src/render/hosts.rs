//! Owns how lists of nodes are written: a few one by one, many only counted.

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

/// Hostnames that are listed one by one; the others are only counted.
const MOST_NAMED: usize = 8;

/// `web-01, web-02`, or `web-01, … and 7 more`.
pub(crate) fn hosts(names: &[String], rows: Rows) -> String {
    if rows == Rows::All || names.len() <= MOST_NAMED {
        return names.join(", ");
    }
    let shown = MOST_NAMED - 2;
    format!("{} and {} more", names[..shown].join(", "), names.len() - shown)
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
    }
}
