//! Owns [`Caller`]: the identity behind a request.

use std::borrow::Cow;

/// The identity behind a request. Every method of the service takes one, checks its rights there, and
/// records its name in changes.
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

    pub fn name(&self) -> &str {
        &self.name
    }
}
