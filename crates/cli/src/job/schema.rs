//! `job schema`.

use crate::exit::Failure;
use crate::out::{Format, Out};

pub(super) fn run(out: Out) -> Result<(), Failure> {
    // A schema has no shape for people: it is JSON unless YAML is asked for.
    let out = if out.format() == Format::Table { out.with_format(Format::Json) } else { out };
    out.result(&downbeat_core::spec::schema(), String::new)
}
