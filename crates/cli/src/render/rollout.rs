//! Owns how a roll-out looks: its waves, its untouched nodes, and the lines about waves that start and end.

use downbeat_api::{Plan, PlannedRollout, Rollout, RolloutRow, WaveStatus};
use downbeat_core::spec::budget_text;

use super::hosts::{Rows, hosts, plural};
use super::table::{Cell, Table, Tone};
use super::time::short;

/// `wave 2 of 4, 1 of 2 allowed failures`.
pub(super) fn position(rollout: &Rollout) -> String {
    let all = rollout.waves.len();
    let wave = match rollout.wave {
        None => format!("{all} waves, none has started"),
        Some(wave) => format!("wave {wave} of {all}"),
    };
    format!("{wave}, {}", failures(rollout))
}

/// Renders `wave 2 of 4, budget 1 of 3`; nothing before the first wave.
pub(super) fn brief_position(rollout: &RolloutRow) -> Option<String> {
    let RolloutRow { wave, waves, failed, budget } = rollout;
    wave.map(|wave| format!("wave {wave} of {waves}, budget {failed} of {budget}"))
}

fn failures(rollout: &Rollout) -> String {
    let Rollout { failed, budget, .. } = rollout;
    match (failed, budget) {
        (0, 0) => "no node may fail".to_owned(),
        (failed, budget) if failed > budget => {
            format!("{}; no further wave starts", budget_text(*failed, *budget))
        }
        (failed, budget) => format!("{failed} of {budget} allowed failures"),
    }
}

/// Renders the waves; the plan has the names of their nodes.
pub(super) fn waves(rollout: &Rollout, plan: &Plan, rows: Rows, width: Option<usize>) -> String {
    let named = plan.waves();
    let mut table = Table::new(["WAVE", "STATUS", "NODES", "WHICH"]);
    for wave in &rollout.waves {
        let (text, tone) = match wave.status {
            WaveStatus::Waiting => ("waiting", Tone::Dim),
            WaveStatus::Running => ("running", Tone::Busy),
            WaveStatus::Ended => ("ended", Tone::Good),
            WaveStatus::Skipped => ("skipped", Tone::Dim),
        };
        table.row([
            wave.wave.to_string().into(),
            Cell::new(text, tone),
            wave.nodes.to_string().into(),
            hosts(nodes_of(&named, wave.wave), rows).into(),
        ]);
    }
    table.draw(width)
}

/// Returns the hostnames of a wave, from 1.
pub(super) fn nodes_of<'n, 'a>(named: &'n [Vec<&'a str>], wave: u32) -> &'n [&'a str] {
    let index = (wave as usize).checked_sub(1);
    index.and_then(|index| named.get(index)).map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn planned_waves(plan: &Plan, rows: Rows, width: Option<usize>) -> String {
    let mut table = Table::new(["WAVE", "NODES", "WHICH"]);
    for (wave, nodes) in (1..).zip(plan.waves()) {
        let wave: u32 = wave;
        table.row([wave.to_string().into(), nodes.len().to_string().into(), hosts(&nodes, rows).into()]);
    }
    table.draw(width)
}

/// `4 waves, 5m between them, 2 nodes may fail`.
pub(super) fn planned(rollout: &PlannedRollout) -> String {
    let waves = plural(rollout.waves.len(), "wave");
    let pause = match rollout.pause {
        pause if pause.is_zero() => String::new(),
        pause => format!(", {} between them", short(pause)),
    };
    let budget = match rollout.budget {
        0 => "no node may fail".to_owned(),
        count => format!("{} may fail", plural(count, "node")),
    };
    format!("{waves}{pause}, {budget}")
}

/// Renders `wave 2 of 4 starts: web-02, web-03`.
pub(super) fn starts(wave: u32, waves: usize, nodes: &[&str]) -> String {
    format!("wave {wave} of {waves} starts: {}", hosts(nodes, Rows::Few))
}
