//! Standing tasks: the ordered list of a cluster, how people edit it, and how each node carries it out.

mod apply;
pub mod edit;
mod fields;
mod list;
mod walk;
mod walks;

pub use apply::{ChangeKind, ListChange};
pub use fields::TaskFields;
pub use list::{Rerun, RerunScope, StandingList, StandingTask};
pub use walk::{Cell, LastAttempt, Next, Walked, Withdrawal, created_at, takes_work};
pub use walks::{ClusterStatus, Start, Step, WalkState, WalkView, Walks};

/// Reading of standing tasks, with positions and paths of all problems.
pub mod read {
    pub use crate::spec::{
        parse_standing_list as parse_list, standing_list_of_json as list_of_json,
        standing_task_of_json as task_of_json, standing_update_of_json as update_of_json,
    };
}
