//! Owns the reasons why a node does not fit. People read them while a step waits.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::backend::lacking_hint;

/// How many reasons one line shows.
const REASONS_SHOWN: usize = 3;

/// A reason why a node cannot take a task now.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Misfit {
    #[error("is offline")]
    Offline,
    #[error("is stale: it has sent no heartbeat for a while")]
    Stale,
    #[error("is draining and takes no new work")]
    Draining,
    #[error("lacks backend `{backend}`{}", lacking_hint(backend))]
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
    /// A string that must be equal differs.
    #[error("capability `{capability}` is {found}, not {wanted}")]
    CapabilityDiffers { capability: String, found: Value, wanted: Value },
    /// A number is too small.
    #[error("capability `{capability}` is {found}, less than {wanted}")]
    CapabilityTooSmall { capability: String, found: Value, wanted: Value },
    #[error("already holds {held} executions of this run (max_per_node: {most})")]
    Full { held: u32, most: u32 },
}

impl Misfit {
    /// Describes the same reason for several nodes, without the values of the nodes, which differ.
    pub fn of_many(&self, nodes: usize) -> String {
        let (s, are, have) = if nodes == 1 { ("s", "is", "has") } else { ("", "are", "have") };
        match self {
            Misfit::Offline => format!("{nodes} {are} offline"),
            Misfit::Stale => format!("{nodes} {are} stale"),
            Misfit::Draining => format!("{nodes} {are} draining"),
            Misfit::LacksBackend { backend } => format!("{nodes} lack{s} backend {backend}"),
            Misfit::LacksAction { backend, action } => {
                format!("{nodes} {have} backend {backend} without action {action}")
            }
            Misfit::Forbidden => format!("{nodes} {are} forbidden"),
            Misfit::NotAllowed => format!("{nodes} {are} not in the allow list"),
            Misfit::LacksLabel { label } => format!("{nodes} lack{s} label {label}"),
            Misfit::LabelDiffers { label, wanted, .. } => {
                format!("{nodes} {have} another {label} than {wanted}")
            }
            Misfit::LacksCapability { capability } => format!("{nodes} lack{s} capability {capability}"),
            Misfit::CapabilityDiffers { capability, wanted, .. } => {
                format!("{nodes} {have} another {capability} than {wanted}")
            }
            Misfit::CapabilityTooSmall { capability, wanted, .. } => {
                format!("{nodes} {have} less {capability} than {wanted}")
            }
            Misfit::Full { most, .. } => format!("{nodes} hold{s} {most} executions of this run already"),
        }
    }

    /// Explains in one line why none of these nodes fits: the most frequent reasons, sorted by frequency.
    pub fn summary<'m>(misfits: impl IntoIterator<Item = &'m Misfit>) -> String {
        let mut reasons: Vec<(&Misfit, String, usize)> = Vec::new();
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for misfit in misfits {
            let text = misfit.of_many(1);
            let kind = *kinds.entry(text).or_insert_with_key(|text| {
                reasons.push((misfit, text.clone(), 0));
                reasons.len() - 1
            });
            reasons[kind].2 += 1;
        }
        if reasons.is_empty() {
            return "no node fits: the cluster has none".to_owned();
        }
        reasons.sort_by(|(_, text, count), (_, other, many)| many.cmp(count).then(text.cmp(other)));
        let shown = reasons.iter().take(REASONS_SHOWN).map(|(misfit, _, count)| misfit.of_many(*count));
        let mut line = format!("no node fits: {}", shown.collect::<Vec<_>>().join("; "));
        if reasons.len() > REASONS_SHOWN {
            let rest: usize = reasons[REASONS_SHOWN..].iter().map(|(_, _, count)| count).sum();
            line.push_str(&format!("; {rest} for other reasons"));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_misfits_are_summed_up_in_one_line() {
        let lacks = |backend: &str| Misfit::LacksBackend { backend: backend.to_owned() };
        let small = |found: u32| Misfit::CapabilityTooSmall {
            capability: "cpu".to_owned(),
            found: found.into(),
            wanted: 8.into(),
        };
        for (misfits, line) in [
            (vec![], "no node fits: the cluster has none"),
            (vec![Misfit::Offline], "no node fits: 1 is offline"),
            (
                vec![Misfit::Offline, lacks("docker"), lacks("docker"), lacks("docker")],
                "no node fits: 3 lack backend docker; 1 is offline",
            ),
            // One reason, whatever each of them has instead.
            (vec![small(1), small(2)], "no node fits: 2 have less cpu than 8"),
            (
                vec![Misfit::Draining, lacks("a"), Misfit::Forbidden, Misfit::Stale, Misfit::Stale],
                "no node fits: 2 are stale; 1 is draining; 1 is forbidden; 1 for other reasons",
            ),
        ] {
            assert_eq!(Misfit::summary(&misfits), line);
        }
    }
}
