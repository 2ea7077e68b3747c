//! Describes types of core in the OpenAPI document; core does not know OpenAPI.

use downbeat_core::execution::{Status, Verdict};
use downbeat_core::node::NodeStatus;
use downbeat_core::plan::{EdgeKind, Shape};
use downbeat_core::run::{RunState, RunStatus};
use downbeat_core::spec::Condition;
use serde::Serialize;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, SchemaType, Type};

fn names(names: impl IntoIterator<Item = &'static str>) -> Schema {
    ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).enum_values(Some(names)).build().into()
}

pub(crate) fn run_state() -> Schema {
    names(RunState::ALL.map(RunState::as_str))
}

/// Describes the outcome of an attempt.
pub(crate) fn outcome() -> Schema {
    let text = || ObjectBuilder::new().schema_type(SchemaType::Type(Type::String));
    let time = || text().format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)));
    ObjectBuilder::new()
        .property("verdict", words([Verdict::Succeeded, Verdict::Failed, Verdict::Cancelled]))
        .property("exit_code", ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer)))
        .property("error", text())
        .property("outputs", ObjectBuilder::new().schema_type(SchemaType::Type(Type::Object)))
        .property("started_at", time())
        .property("finished_at", time())
        .property("received_at", time())
        .required("verdict")
        .required("started_at")
        .required("finished_at")
        .build()
        .into()
}

pub(crate) fn run_status() -> Schema {
    names(RunStatus::ALL.map(RunStatus::as_str))
}

pub(crate) fn execution_status() -> Schema {
    names(Status::ALL.map(Status::as_str))
}

pub(crate) fn node_status() -> Schema {
    names(NodeStatus::ALL.map(NodeStatus::as_str))
}

pub(crate) fn condition() -> Schema {
    words([Condition::Always, Condition::OnSuccess, Condition::OnFailure])
}

pub(crate) fn edge_kind() -> Schema {
    words([EdgeKind::Barrier, EdgeKind::PerNode])
}

pub(crate) fn shape() -> Schema {
    words([Shape::List, Shape::Graph])
}

/// Describes an enum by the strings that its variants serialize to.
fn words<T: Serialize>(variants: impl IntoIterator<Item = T>) -> Schema {
    let words =
        variants.into_iter().map(|variant| serde_json::to_value(variant).expect("a variant is a word"));
    ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).enum_values(Some(words)).build().into()
}
