//! Owns the reasons for which a node does not fit. People read them when a step waits.

use serde_json::Value;

/// Why a node may not take a task now.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Misfit {
    #[error("is offline")]
    Offline,
    #[error("is stale: it was not heard of for a while")]
    Stale,
    #[error("is draining and takes no new work")]
    Draining,
    #[error("lacks backend `{backend}`")]
    LacksBackend { backend: String },
    #[error("has backend `{backend}` without action `{action}`")]
    LacksAction { backend: String, action: String },
    #[error("is forbidden by the placement")]
    Forbidden,
    #[error("is not in the placement's allow list")]
    NotAllowed,
    #[error("lacks label `{label}`")]
    LacksLabel { label: String },
    #[error("label `{label}` is `{found}`, not `{wanted}`")]
    LabelDiffers { label: String, found: String, wanted: String },
    #[error("lacks capability `{capability}`")]
    LacksCapability { capability: String },
    /// A text that must be equal is another one.
    #[error("capability `{capability}` is {found}, not {wanted}")]
    CapabilityDiffers { capability: String, found: Value, wanted: Value },
    /// A number that must be reached is not.
    #[error("capability `{capability}` is {found}, less than {wanted}")]
    CapabilityTooSmall { capability: String, found: Value, wanted: Value },
    #[error("already holds {held} of this run, and may hold {most}")]
    Full { held: u32, most: u32 },
}
