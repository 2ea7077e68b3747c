//! Owns [`Caller`]: who makes a request.

use std::borrow::Cow;

/// Who makes a request. Every verb of the service takes one: what a caller may do is decided there, and changes carry
/// its name.
#[derive(Clone, Debug)]
pub struct Caller {
    name: Cow<'static, str>,
}

impl Caller {
    /// Whoever reaches the REST API: there is no authentication yet.
    pub const API: Caller = Caller::named("api");

    pub const fn named(name: &'static str) -> Self {
        Self { name: Cow::Borrowed(name) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}
