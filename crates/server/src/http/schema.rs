//! Owns the schema of the job file, for editors and forms.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use downbeat_core::spec;

use super::extract::{Nothing, Query};

static JOB: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(spec::schema().to_string()));

/// Returns the JSON schema of the job file
#[utoipa::path(
    get, operation_id = "showJobSchema", path = "/schema/job", tag = "plans",
    responses((status = 200, description = "A JSON schema", body = Value, content_type = "application/schema+json"))
)]
pub(super) async fn job(_: Query<Nothing>) -> Response {
    ([(header::CONTENT_TYPE, "application/schema+json")], JOB.clone()).into_response()
}
