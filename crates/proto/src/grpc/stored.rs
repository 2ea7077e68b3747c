//! Owns results as bytes: an agent stores results in the format in which it sends them, so that a newer agent reads
//! those of an older one.

use prost::Message;

use super::convert::{finished_from_wire, finished_to_wire, rejected};
use super::generated as wire;
use crate::message::{Fault, Finished};

pub fn finished_to_bytes(finished: Finished) -> Vec<u8> {
    finished_to_wire(finished).encode_to_vec()
}

pub fn finished_from_bytes(bytes: &[u8]) -> Result<Finished, Fault> {
    finished_from_wire(wire::Finished::decode(bytes).map_err(|error| rejected("finished", error))?)
}
