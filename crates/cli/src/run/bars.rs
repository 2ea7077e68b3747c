//! Owns the progress bars of a run that is watched on a terminal: one per step, on standard error.

use std::io::IsTerminal;
use std::time::Duration;

use downbeat_server::http::view::{Plan, Run};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::out::Out;
use crate::render::Tally;

/// More bars than this scroll off the screen: only the steps that are at work are shown then.
const MOST_BARS: usize = 12;
const TICK: Duration = Duration::from_millis(100);

/// The bars.
pub(super) struct Bars {
    all: MultiProgress,
    bars: Vec<Option<ProgressBar>>,
    name_width: usize,
}

impl Bars {
    /// Nothing where nobody looks.
    pub(super) fn on_terminal(out: Out, plan: &Plan) -> Option<Self> {
        if !out.is_terminal() || !std::io::stderr().is_terminal() {
            return None;
        }
        let name_width = plan.steps.iter().map(|step| step.name.chars().count()).max().unwrap_or(0).min(32);
        Some(Self { all: MultiProgress::new(), bars: vec![None; plan.steps.len()], name_width })
    }

    pub(super) fn show(&mut self, tallies: &[Tally], run: &Run) {
        let few = tallies.len() <= MOST_BARS;
        for (place, tally) in self.bars.iter_mut().zip(tallies) {
            let active = tally.running > 0 || (tally.ended() > 0 && !tally.has_ended());
            if place.is_none() && (few || active) {
                *place = Some(bar(&self.all, tally, self.name_width));
            }
            let Some(bar) = place else { continue };
            bar.set_position(tally.ended());
            bar.set_message(told(tally));
            if (tally.has_ended() || run.summary.state.is_terminal()) && !bar.is_finished() {
                if few { bar.abandon() } else { bar.finish_and_clear() }
            }
        }
    }
}

fn bar(all: &MultiProgress, tally: &Tally, name_width: usize) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{spinner:.cyan} {prefix} {bar:24.green/dim} {pos:>4}/{len:<4} {msg}")
            .expect("the template is fixed")
            .progress_chars("━━─")
            .tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ ");
    let bar = all.add(ProgressBar::new(tally.wanted).with_style(style));
    bar.set_prefix(format!("{:>3} {:<name_width$}", tally.index, tally.name));
    bar.enable_steady_tick(TICK);
    bar
}

fn told(tally: &Tally) -> String {
    let parts = [
        (tally.succeeded, "ok"),
        (tally.failed, "failed"),
        (tally.cancelled, "cancelled"),
        (tally.skipped, "skipped"),
        (tally.running, "running"),
    ];
    let told: Vec<String> = parts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    told.join(", ")
}
