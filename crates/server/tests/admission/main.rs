//! Turns: which run begins when, who has which node, and that no server breaks the rules by itself or together.

#[allow(dead_code, reason = "not every test needs all of it")]
#[path = "../../../store/tests/database/mod.rs"]
mod database;
#[allow(dead_code, reason = "not every test needs all of it")]
#[path = "../http/support.rs"]
mod support;

mod exclusive;
mod limits;
mod pause;
mod queue;
mod servers;
mod work;
