//! Owns the progress bars of a watched run on a terminal: one per step, on standard error.

use std::io::IsTerminal;
use std::time::Duration;

use downbeat_api::{Plan, RunSummary, StepProgress};
use downbeat_core::execution::Status;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::out::Out;
use crate::render::counts;

/// More bars than this would scroll off the screen: then only active steps have one.
const MOST_BARS: usize = 12;
const TICK: Duration = Duration::from_millis(100);

pub(super) struct Bars {
    all: MultiProgress,
    bars: Vec<Option<ProgressBar>>,
    layout: Layout,
    out: Out,
}

/// The widths of the parts of a bar's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    name_width: usize,
    /// 0 if the terminal has no room for a bar.
    bar_width: usize,
}

/// Spinner, number, counts and the blanks between them.
const FIXED_COLUMNS: usize = 17;
/// Columns for the counts by status; the rest is cut.
const MESSAGE_COLUMNS: usize = 10;

impl Layout {
    fn of(columns: usize, longest_name: usize) -> Self {
        let bar_width = match columns {
            0..60 => 0,
            60..80 => 10,
            _ => 24,
        };
        let bar_columns = if bar_width == 0 { 0 } else { bar_width + 1 };
        let taken = FIXED_COLUMNS + MESSAGE_COLUMNS + bar_columns;
        Self { name_width: columns.saturating_sub(taken).min(longest_name).min(32), bar_width }
    }

    fn template(self) -> String {
        let bar = match self.bar_width {
            0 => String::new(),
            width => format!(" {{bar:{width}.green/dim}}"),
        };
        format!("{{spinner:.cyan}} {{prefix}}{bar} {{pos:>4}}/{{len:<4}} {{wide_msg}}")
    }
}

impl Bars {
    /// Returns `None` if the output is not a terminal.
    pub(super) fn on_terminal(out: Out, plan: &Plan) -> Option<Self> {
        if !out.is_terminal() || !std::io::stderr().is_terminal() {
            return None;
        }
        let longest_name = plan.steps.iter().map(|step| step.name.chars().count()).max().unwrap_or(0);
        let layout = Layout::of(out.width().unwrap_or_default(), longest_name);
        Some(Self { all: MultiProgress::new(), bars: vec![None; plan.steps.len()], layout, out })
    }

    pub(super) fn print_above(&self, line: &str) {
        self.all.suspend(|| self.out.note(line));
    }

    pub(super) fn show(&mut self, steps: &[StepProgress], run: &RunSummary) {
        let few = steps.len() <= MOST_BARS;
        for (slot, step) in self.bars.iter_mut().zip(steps) {
            let active = step.running() > 0 || (step.ended() > 0 && step.open() > 0);
            if slot.is_none() && (few || active) {
                *slot = Some(bar(&self.all, step, self.layout));
            }
            let Some(bar) = slot else { continue };
            bar.set_length(step.instances);
            bar.set_position(step.ended());
            bar.set_message(counts_text(step));
            if (step.open() == 0 || run.state.is_terminal()) && !bar.is_finished() {
                if few { bar.abandon() } else { bar.finish_and_clear() }
            }
        }
    }
}

fn bar(all: &MultiProgress, step: &StepProgress, layout: Layout) -> ProgressBar {
    let style = ProgressStyle::with_template(&layout.template())
        .expect("the template is one of three")
        .progress_chars("━━─")
        .tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ ");
    let bar = all.add(ProgressBar::new(step.instances).with_style(style));
    bar.set_prefix(prefix(step, layout.name_width));
    bar.enable_steady_tick(TICK);
    bar
}

fn prefix(step: &StepProgress, width: usize) -> String {
    format!("{:>3} {:<width$.width$}", step.step, step.task)
}

fn counts_text(step: &StepProgress) -> String {
    counts(&[
        (step.count(Status::Succeeded).saturating_sub(step.cached + step.reused), "ok"),
        (step.reused, "reused"),
        (step.cached, "cached"),
        (step.failed(), "failed"),
        (step.count(Status::Cancelled), "cancelled"),
        (step.count(Status::Skipped), "skipped"),
        (step.running(), "running"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_every_terminal_with_room_for_what_it_counts() {
        let step = StepProgress {
            step: 7,
            task: "a-rather-long-name-of-a-step".repeat(2),
            ..StepProgress::default()
        };
        for columns in [40, 59, 60, 79, 80, 200] {
            let layout = Layout::of(columns, step.task.len());
            let bar = if layout.bar_width == 0 { 0 } else { 1 + layout.bar_width };
            let before_message = "⠋ ".chars().count()
                + prefix(&step, layout.name_width).chars().count()
                + bar
                + " 1234/1234 ".len();
            assert!(before_message + MESSAGE_COLUMNS <= columns, "{columns}: {layout:?}");
            assert!(layout.name_width >= 12, "{columns}: {layout:?}");
            ProgressStyle::with_template(&layout.template()).unwrap();
        }
        assert_eq!(Layout::of(120, 5), Layout { name_width: 5, bar_width: 24 });
    }
}
