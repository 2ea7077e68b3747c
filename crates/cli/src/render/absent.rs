//! Owns how a run's absent nodes are named: drained nodes that were left out, and silent nodes.

use downbeat_api::{Absent, Run};

use super::hosts::{Rows, few};

/// `wa, wb (drained)`.
pub(super) fn left_out(nodes: &[Absent], rows: Rows) -> String {
    nodes
        .iter()
        .map(|group| format!("{} ({})", few(&group.nodes, rows), group.reason.trim_start_matches("is ")))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Renders `o1, o2: offline: their steps fail …`, one sentence per reason.
pub(super) fn silent(nodes: &[Absent], rows: Rows) -> String {
    nodes
        .iter()
        .map(|group| match group.nodes.count {
            1 => format!("{} {}", few(&group.nodes, rows), group.reason),
            _ => format!("{} {}", few(&group.nodes, rows), of_several(&group.reason)),
        })
        .collect::<Vec<_>>()
        .join("; ")
}

/// Returns the lines about absent nodes that are printed when a run starts.
pub(crate) fn absences(run: &Run) -> Vec<String> {
    let mut lines = Vec::new();
    if !run.left_out.is_empty() {
        lines.push(format!("left out: {}", left_out(&run.left_out, Rows::Few)));
    }
    if !run.silent.is_empty() {
        lines.push(silent(&run.silent, Rows::Few));
    }
    lines
}

/// Turns the sentence about one node into one about several.
fn of_several(reason: &str) -> String {
    let reason = match reason.split_once(' ') {
        Some(("is", rest)) => format!("are {rest}"),
        Some(("was", rest)) => format!("were {rest}"),
        _ => reason.to_owned(),
    };
    reason
        .replace("it is ", "they are ")
        .replace("it goes ", "they go ")
        .replace("its ", "their ")
        .replace("for it,", "for them,")
}

#[cfg(test)]
mod tests {
    use downbeat_api::NodeReason;

    use super::*;

    #[test]
    fn nodes_that_share_a_reason_share_a_sentence() {
        let node = |name: &str, reason: &str| NodeReason { node: name.to_owned(), reason: reason.to_owned() };
        let drained = [node("wa", "is drained"), node("wb", "is drained")];
        assert_eq!(left_out(&Absent::group(&drained), Rows::Few), "wa, wb (drained)");
        let stale = "is stale: its steps wait for it, and fail when it goes offline";
        let quiet = [node("o1", stale), node("o2", "is offline: y"), node("o3", stale)];
        assert_eq!(
            silent(&Absent::group(&quiet), Rows::Few),
            "o1, o3 are stale: their steps wait for them, and fail when they go offline; o2 is offline: y"
        );
        let deleted = "was deleted: its steps fail";
        assert_eq!(
            silent(&Absent::group(&[node("o1", deleted), node("o2", deleted)]), Rows::Few),
            "o1, o2 were deleted: their steps fail"
        );
    }
}
