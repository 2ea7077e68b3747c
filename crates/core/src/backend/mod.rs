//! Backends: what agents can do. Their declared actions and params, the catalogue of those that are known, and the
//! check of what a task gives them. How a thing is done on a host is the `backends` crate's.

mod argv;
mod builtin;
mod catalogue;
mod check;
mod coerce;
mod pattern;
mod schema;

pub use argv::shell_sign;
pub use builtin::{all_that_need_allow, lacking_hint, needs_allow};
pub use catalogue::{Catalogue, Unknown};
pub(crate) use check::check_params_but;
pub use check::{Element, ParamProblem, check_params};
pub use coerce::coerce;
pub use pattern::{BadPattern, Pattern};
pub use schema::{ActionSchema, BackendSchema, ParamKind, ParamSchema, Params, params_bytes};
