//! A real browser: pages of other sites cannot do anything to a server, and the server's own page works.

mod chromium;
#[allow(dead_code, reason = "not every test needs all of it")]
#[path = "../e2e/cluster.rs"]
mod cluster;
mod evil;
mod pages;
