//! Turns: which run begins when, who has which node, and that no server breaks the rules by itself or together.

mod exclusive;
mod limits;
mod pause;
mod queue;
mod servers;
mod work;
