//! Owns [`Caller`]: the identity behind a request.

use std::borrow::Cow;

/// The identity behind a request. Every verb of the service that changes or finds something takes one; its rights
/// are checked there, and its name is recorded in changes. Details are read only of what such a verb returned.
#[derive(Clone, Debug)]
pub struct Caller {
    name: Cow<'static, str>,
}

impl Caller {
    /// Every client of the REST API: there is no authentication yet.
    pub const API: Caller = Caller::named("api");

    pub const fn named(name: &'static str) -> Self {
        Self { name: Cow::Borrowed(name) }
    }

    /// A trigger that starts its job.
    pub(crate) fn trigger(name: String) -> Self {
        Self { name: Cow::Owned(name) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}
