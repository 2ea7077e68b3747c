//! Turns: which run starts when, which run holds which node, on one server and on several.

mod exclusive;
mod limits;
mod pause;
mod queue;
mod servers;
mod work;
