//! Decides when work for an unreachable node fails.

/// Whether a node can get work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Online, or silent for so short a time that its work waits.
    Here,
    Offline,
    Deleted,
}

impl Reach {
    /// Returns why work for the node fails, if it does. Patient work was re-sent after a loss: it waits for an offline
    /// node, which may come back. A deleted node does not.
    pub fn fails(self, is_patient: bool) -> Option<&'static str> {
        match self {
            Self::Here => None,
            Self::Offline => (!is_patient).then_some("is offline"),
            Self::Deleted => Some("was deleted"),
        }
    }
}
