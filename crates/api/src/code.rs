//! Owns the codes of problems, by which programs distinguish errors.

/// The header `Idempotency-Key` is empty, too long, or not visible ASCII.
pub const BAD_IDEMPOTENCY_KEY: &str = "bad_idempotency_key";
/// The header `Last-Event-ID` is not a position in the stream.
pub const BAD_LAST_EVENT_ID: &str = "bad_last_event_id";
/// A segment of the path cannot be read.
pub const BAD_PATH: &str = "bad_path";
/// A parameter of the query is wrong.
pub const BAD_QUERY: &str = "bad_query";
/// A bug in the server; its log has more.
pub const BUG: &str = "bug";
/// Too many large plans are being computed.
pub const BUSY: &str = "busy";
/// The state of the run or node does not allow the request.
pub const CONFLICT: &str = "conflict";
/// A web page of another site sent the request.
pub const CROSS_SITE: &str = "cross_site";
/// The requested events are no longer kept; `first` is the number of the first event that is.
pub const EVENTS_GONE: &str = "events_gone";
/// The idempotency key belongs to another request.
pub const IDEMPOTENCY_KEY_REUSED: &str = "idempotency_key_reused";
/// The definition has mistakes; `errors` lists them.
pub const INVALID_DEFINITION: &str = "invalid_definition";
/// The params of the run have mistakes; `errors` lists them.
pub const INVALID_PARAMS: &str = "invalid_params";
/// A standing task, or a list of them, has mistakes; `errors` lists them.
pub const INVALID_TASK: &str = "invalid_task";
/// The body cannot be read.
pub const MALFORMED: &str = "malformed";
/// The path does not support the method.
pub const METHOD_NOT_ALLOWED: &str = "method_not_allowed";
/// The run, node, execution, cluster or standing task does not exist.
pub const NOT_FOUND: &str = "not_found";
/// The server cannot do its work at the moment.
pub const NOT_READY: &str = "not_ready";
/// The server is a read replica; `primary` names a server that accepts the request.
pub const READ_ONLY_REPLICA: &str = "read_only_replica";
/// The run cannot start on its nodes; `nodes` has the reasons.
pub const REFUSED: &str = "refused";
/// The request is well-formed but not possible.
pub const REJECTED: &str = "rejected";
/// The body did not arrive in time.
pub const REQUEST_TIMEOUT: &str = "request_timeout";
/// The body is larger than allowed.
pub const TOO_LARGE: &str = "too_large";
/// The trigger accepts no more requests at the moment.
pub const TOO_MANY_REQUESTS: &str = "too_many_requests";
/// Too many runs wait for their turn, or are open.
pub const TOO_MANY_RUNS: &str = "too_many_runs";
/// The store is not available.
pub const UNAVAILABLE: &str = "unavailable";
/// The server is not known by the name in `Host`.
pub const UNKNOWN_HOST: &str = "unknown_host";
/// The path does not exist.
pub const UNKNOWN_PATH: &str = "unknown_path";
/// The sender did not prove that it knows the secret of the trigger.
pub const UNPROVEN: &str = "unproven";
/// The content type of the body is missing, or is neither JSON nor YAML.
pub const UNSUPPORTED_MEDIA_TYPE: &str = "unsupported_media_type";
