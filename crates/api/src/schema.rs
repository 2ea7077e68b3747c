//! Describes types of core in the OpenAPI document; core does not know OpenAPI.

use downbeat_core::cluster::OnRegister;
use downbeat_core::execution::{Status, Verdict};
use downbeat_core::node::NodeStatus;
use downbeat_core::plan::{EdgeKind, Shape};
use downbeat_core::run::{RunState, RunStatus};
use downbeat_core::spec::Condition;
use downbeat_core::standing::{ChangeKind, WalkState};
use serde::Serialize;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, SchemaType, Type};

/// Describes enums by the strings that their variants serialize to.
macro_rules! enums {
    ($($name:ident = $variants:expr;)+) => {
        $(pub(crate) fn $name() -> Schema { words($variants) })+
    };
}

enums! {
    run_state = RunState::ALL;
    run_status = RunStatus::ALL;
    execution_status = Status::ALL;
    node_status = NodeStatus::ALL;
    condition = [Condition::Always, Condition::OnSuccess, Condition::OnFailure];
    edge_kind = [EdgeKind::Barrier, EdgeKind::PerNode];
    shape = [Shape::List, Shape::Graph];
    on_register = OnRegister::ALL;
    walk_state = WalkState::ALL;
    change_kind = ChangeKind::ALL;
}

fn words<T: Serialize>(variants: impl IntoIterator<Item = T>) -> Schema {
    let words =
        variants.into_iter().map(|variant| serde_json::to_value(variant).expect("a variant is a word"));
    ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).enum_values(Some(words)).build().into()
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
