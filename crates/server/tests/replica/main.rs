//! Read replicas against real primaries: the same answers, whatever happens to either.

#[path = "../../../store/tests/database/mod.rs"]
mod database;
#[allow(dead_code, reason = "not every test needs all of it")]
#[path = "../http/support.rs"]
mod support;

mod alike;
mod copies;
mod doors;
mod load;
mod site;
mod streams;
