//! The program as people use it: a real `downbeat dev`, or server and agents as processes, and the client commands.

mod again;
mod approvals;
mod bench;
mod broken;
mod clusters;
mod debug;
mod declared;
mod errors;
mod examples;
mod flows;
mod follow;
mod formats;
mod golden;
mod graph;
mod host;
mod jobs;
mod output;
mod processes;
mod replica;
mod schedules;
mod strangers;
mod triggers;
mod waiting;
mod work;
