//! Decides which names a cluster may have.

use crate::ids::ClusterId;
use crate::limits;

/// Why a name cannot be the name of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error("the name of a cluster is empty")]
    Empty,
    #[error("the name of a cluster has {0} bytes; at most {most} are possible", most = limits::CLUSTER_NAME_BYTES)]
    TooLong(usize),
    /// A colon separates the parts of a scheduled run's id; a slash separates the parts of a path.
    #[error("the name of a cluster contains {0:?}; use letters, digits, spaces, `-`, `_` and `.`")]
    Character(char),
    #[error("the name of a cluster starts or ends with a space")]
    Space,
    /// Commands read `-x` as an option, and addresses read `..` as the path above.
    #[error("the name of a cluster starts with {0:?}; start with a letter or a digit")]
    Start(char),
    /// The ids of some runs start with it.
    #[error("the name `{0}` is reserved")]
    Reserved(String),
    /// An id and a name are used at the same places.
    #[error("the name of a cluster looks like an id")]
    LooksLikeId,
}

/// Checks the name of a new cluster: letters and digits of any script, spaces inside, `-`, `_` and `.`. It starts with a letter
/// or a digit.
pub fn check_name(name: &str) -> Result<(), BadName> {
    if name.is_empty() {
        return Err(BadName::Empty);
    }
    if name.len() > limits::CLUSTER_NAME_BYTES {
        return Err(BadName::TooLong(name.len()));
    }
    let is_allowed = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_' | '.');
    if let Some(c) = name.chars().find(|c| !is_allowed(*c)) {
        return Err(BadName::Character(c));
    }
    if name.trim() != name {
        return Err(BadName::Space);
    }
    if let Some(c) = name.chars().next().filter(|c| !c.is_alphanumeric()) {
        return Err(BadName::Start(c));
    }
    if ["debug", "standing"].contains(&name) {
        return Err(BadName::Reserved(name.to_owned()));
    }
    if name.parse::<ClusterId>().is_ok() {
        return Err(BadName::LooksLikeId);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_by_one_rule() {
        let long = "n".repeat(limits::CLUSTER_NAME_BYTES);
        let too_long = "n".repeat(limits::CLUSTER_NAME_BYTES + 1);
        let id = ClusterId::DEFAULT.to_string();
        let cases: [(&str, Result<(), BadName>); 18] = [
            ("default", Ok(())),
            ("Production Cluster", Ok(())),
            ("eu-west_1.blue", Ok(())),
            ("Köln", Ok(())),
            (&long, Ok(())),
            ("", Err(BadName::Empty)),
            (&too_long, Err(BadName::TooLong(limits::CLUSTER_NAME_BYTES + 1))),
            ("a:b", Err(BadName::Character(':'))),
            ("a/b", Err(BadName::Character('/'))),
            ("a\nb", Err(BadName::Character('\n'))),
            (" a", Err(BadName::Space)),
            (".", Err(BadName::Start('.'))),
            ("..", Err(BadName::Start('.'))),
            ("-x", Err(BadName::Start('-'))),
            ("_x", Err(BadName::Start('_'))),
            (&id, Err(BadName::LooksLikeId)),
            ("debug", Err(BadName::Reserved("debug".to_owned()))),
            ("standing", Err(BadName::Reserved("standing".to_owned()))),
        ];
        for (name, expected) in cases {
            assert_eq!(check_name(name), expected, "{name:?}");
        }
    }
}
