//! Owns how the domain's own types are described in the OpenAPI document; the domain itself does not know OpenAPI.

use downbeat_core::execution::Status;
use downbeat_core::node::NodeStatus;
use downbeat_core::run::{RunState, RunStatus};
use downbeat_core::spec::Condition;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};

fn names(names: impl IntoIterator<Item = &'static str>) -> Schema {
    ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).enum_values(Some(names)).build().into()
}

pub(super) fn run_state() -> Schema {
    names(RunState::ALL.map(RunState::as_str))
}

pub(super) fn run_status() -> Schema {
    names(RunStatus::ALL.map(RunStatus::as_str))
}

pub(super) fn execution_status() -> Schema {
    names(Status::ALL.map(Status::as_str))
}

pub(super) fn node_status() -> Schema {
    names(NodeStatus::ALL.map(NodeStatus::as_str))
}

pub(super) fn condition() -> Schema {
    names([Condition::Always, Condition::OnSuccess, Condition::OnFailure].map(condition_name))
}

fn condition_name(condition: Condition) -> &'static str {
    match condition {
        Condition::Always => "always",
        Condition::OnSuccess => "on_success",
        Condition::OnFailure => "on_failure",
    }
}
