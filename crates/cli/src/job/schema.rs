//! `job schema`.

use crate::exit::Failure;
use crate::out::{Format, Out};

pub(super) fn run(out: Out) -> Result<(), Failure> {
    // A schema has no table form: it is JSON unless YAML is requested.
    let out = if out.format() == Format::Table { out.with_format(Format::Json) } else { out };
    out.result(&downbeat_core::spec::schema(), String::new)
}
