//! The outbox: results on disk until a server acknowledged them, so that neither a crash of the agent nor one of the
//! server loses any.

mod record;
mod segments;
mod writer;

pub(crate) use writer::Outbox;
