//! The job file: from text to a checked definition.

mod cache;
mod definition;
mod fields;
mod known;
mod life;
mod limit;
mod notification;
mod params;
mod parse;
mod problem;
mod rollout;
mod schedule;
mod schema;
mod trigger;

pub use definition::{
    Approve, Branch, Cache, Condition, Definition, Delivery, Entry, ForEach, Limit, Limits, OnDisconnect,
    Placement, Preference, Retry, Spread, Strategy, Task,
};
pub use fields::{Field, On, fields};
pub(crate) use known::{ExprSite, Known, Use};
pub use life::{Action, ActionKind, Constraints, HttpHook, IfUnknown, Overlap, What};
pub use notification::Notification;
pub use params::resolve_params;
pub(crate) use parse::cycles;
pub use parse::{
    from_json, from_json_noting, named_cluster, named_cluster_of_json, notification_of_json, parse,
    parse_bytes, parse_bytes_noting, parse_noting,
};
pub use parse::{parse_standing_list, standing_list_of_json, standing_task_of_json, standing_update_of_json};
pub use problem::{At, Noted, Problem};
pub use rollout::{Amount, Batch, NotAnAmount, Rollout, budget_text};
pub use schedule::{CatchUp, CatchUpPolicy, Schedule, When};
pub use schema::schema;
pub use trigger::{
    EventKind, EventTrigger, HookAuth, HttpTrigger, JobTrigger, RunEnding, SecretSource, Trigger,
};
