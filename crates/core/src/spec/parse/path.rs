//! Owns the path from the top of a job file to a field. It is linked on the stack, and becomes text only for a problem.

use std::fmt;

use crate::shown::shown;

#[derive(Clone, Copy, Debug)]
pub(super) enum Path<'p> {
    Top,
    Field(&'p Path<'p>, &'p str),
    Index(&'p Path<'p>, usize),
}

impl<'p> Path<'p> {
    pub(super) fn field(&'p self, name: &'p str) -> Path<'p> {
        Path::Field(self, name)
    }

    pub(super) fn index(&'p self, index: usize) -> Path<'p> {
        Path::Index(self, index)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Top => Ok(()),
            Path::Field(Path::Top, name) => f.write_str(&shown(name)),
            Path::Field(above, name) => write!(f, "{above}.{}", shown(name)),
            Path::Index(above, index) => write!(f, "{above}[{index}]"),
        }
    }
}
