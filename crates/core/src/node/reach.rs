//! Decides what becomes of work for a node that cannot be reached.

/// Whether a node can be given work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Online, or silent for so short a time that it is waited for.
    Here,
    Offline,
    Deleted,
}

impl Reach {
    /// Why work for the node fails, if it does. Patient work was sent again after a loss: it waits for a node that is
    /// offline, because that may come back. A deleted node does not.
    pub fn fails(self, is_patient: bool) -> Option<&'static str> {
        match self {
            Self::Here => None,
            Self::Offline => (!is_patient).then_some("is offline"),
            Self::Deleted => Some("was deleted"),
        }
    }
}
