//! Text for users. Every function here is pure: it depends on its arguments, the time and the width.

mod absent;
mod backfill;
mod cluster;
mod delivery;
mod event;
mod graph;
mod hosts;
mod job;
mod node;
mod plan;
mod plan_graph;
mod progress;
mod rollout;
mod run;
mod schedule;
mod standing;
mod status;
pub(crate) mod table;
mod time;
mod waits;
mod walk;
mod watch_lines;
mod work;

pub(crate) use absent::absences;
pub(crate) use backfill::{backfill_page, backfill_plan, backfill_progress, backfill_table};
pub(crate) use cluster::{StuckNodes, cluster_page, cluster_status_page, cluster_table, quoted};
pub(crate) use delivery::{delivery_page, delivery_table};
pub(crate) use event::EventLines;
pub(crate) use hosts::{Rows, counts, hosts, plural, shown_of};
pub(crate) use job::{applied_lines, difference_lines, history_page, job_page, job_table};
pub(crate) use node::{no_nodes, node_page, node_table};
pub(crate) use plan::plan_page;
pub(crate) use run::{result_table, run_line, run_page, run_table, started_line};
pub(crate) use schedule::{MissedTimes, PreviewTime, missed_page, preview_table};
pub(crate) use standing::{Applied, attempt_table, list_changes, standing_task_page, standing_task_table};
pub(crate) use status::{server_table, status_page};
pub(crate) use waits::Waits;
pub(crate) use walk::walk_page;
pub(crate) use watch_lines::WatchLines;
pub(crate) use work::work_page;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod golden_clusters;
#[cfg(test)]
pub(crate) use golden_clusters::a_standing_task;
