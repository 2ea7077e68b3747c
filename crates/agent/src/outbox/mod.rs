//! The outbox keeps results on disk until a server acknowledges them, so that neither a crash of the agent nor of the
//! server loses any.

mod record;
mod segments;
mod writer;

pub(crate) use writer::Outbox;
