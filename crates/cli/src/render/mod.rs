//! Text for users. Every function here is pure: it depends on its arguments, the time and the width.

mod absent;
mod event;
mod graph;
mod hosts;
mod node;
mod plan;
mod plan_graph;
mod progress;
mod rollout;
mod run;
mod status;
pub(crate) mod table;
mod time;
mod waits;
mod watch_lines;
mod work;

pub(crate) use absent::absences;
pub(crate) use event::EventLines;
pub(crate) use hosts::{Rows, counts, plural, shown_of};
pub(crate) use node::{node_page, node_table};
pub(crate) use plan::plan_page;
pub(crate) use run::{result_table, run_line, run_page, run_table, started_line};
pub(crate) use status::{server_table, status_page};
pub(crate) use waits::Waits;
pub(crate) use watch_lines::WatchLines;
pub(crate) use work::work_page;

#[cfg(test)]
mod golden;
