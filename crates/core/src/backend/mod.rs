//! Backends: the declared actions and params of agents, the catalogue of known backends, and the check of a task's
//! params. The `backends` crate implements the actions on a host.

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
pub use check::{Element, ParamProblem, check_params, text_of};
pub use coerce::coerce;
pub use pattern::{BadPattern, Pattern};
pub use schema::{ActionSchema, BackendSchema, ParamKind, ParamSchema, Params, params_bytes};
