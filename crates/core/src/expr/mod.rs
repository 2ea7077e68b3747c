//! Expressions in params of tasks: `{{ steps.build.outputs.version }}`. A small and safe part of Jinja's expressions:
//!
//! - names: `params.x`, `steps.NAME.outputs.x`, `steps.NAME.nodes["web-01"].outputs.x`, `node.hostname`, `run.id`,
//!   and in a task with `for_each` `item` and `index`;
//!   in the params of a trigger only `payload` and `trigger.x`;
//!   a name with other characters than letters, digits and `_` stands in brackets: `steps["build-web"]`;
//! - texts, numbers, `true`, `false`, lists, maps, parts of them (`x[0]`, `x.y`, `x[1:3]`);
//! - `==`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `and`, `or`, `not`, `a if b else c`, and `~`, which joins texts;
//! - filters: default, upper, lower, trim, replace, join, split, length, first, last, int, string, tojson.
//!
//! There is nothing else: no arithmetic, no calls, no loops, no statements. The steps that an expression uses are known
//! from its text alone (`reference`), whichever branch is evaluated; and every result is bounded in size.

mod data;
mod filters;
mod reference;
mod template;
mod token;
mod trigger;

pub use data::{Data, Scope, facts};
pub(crate) use reference::{Reference, Root, in_path};
pub(crate) use template::{FOR_EACH, StepUse, has_expression, looks_like_expression, read_by_a_shell};
pub use template::{References, Template};

#[cfg(test)]
mod tests;
