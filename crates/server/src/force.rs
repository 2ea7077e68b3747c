//! Owns the answer to whether an operation needs the consent of agents.

/// Whether an operation is carried out although an agent is alive and has not agreed: a node that is online is deleted, the
/// executions of a cancelled run end before their agents confirm it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    On,
    Off,
}
