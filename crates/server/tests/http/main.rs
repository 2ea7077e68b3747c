//! The REST API against a real server: every route, every class of error, every stream.

mod again;
mod backfills;
mod clusters;
mod debug;
mod doors;
mod errors;
mod events;
mod frames;
mod graph;
mod hooks;
mod live;
mod many;
mod nodes;
mod openapi;
mod output;
mod registration;
mod reports;
mod runs;
mod standing;
mod system;
mod targets;
mod triggers;
mod ui;
mod work;
