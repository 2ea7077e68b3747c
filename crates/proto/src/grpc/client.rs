//! Owns an agent's gRPC connection to one server. The agent reconnects and chooses among servers.

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use downbeat_core::limits;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

use super::fault::from_status;
use super::generated as wire;
use super::generated::agent_client::AgentClient;
use super::request::{
    heartbeat_answer_from_wire, heartbeat_to_wire, hello_to_wire, output_to_wire, poll_answer_from_wire,
    poll_to_wire, register_to_wire, report_answer_from_wire, report_to_wire, welcome_from_wire,
};
use crate::message::{
    Fault, Heartbeat, HeartbeatAnswer, Hello, Output, Poll, PollAnswer, Register, Registered, Report,
    ReportAnswer, Welcome,
};
use crate::{Link, deadline, poll_deadline};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that is silent for this long after a ping is gone, whatever TCP reports.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// The default port for agents.
const AGENT_PORT: u16 = 4681;
/// How much a server may send before this side has read it. More would fill buffers along a slow network, and the
/// response to a heartbeat would wait behind it.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 128 * 1024;

/// A connection to one server. Cheap to clone; all calls share one HTTP/2 connection.
#[derive(Clone, Debug)]
pub struct Client {
    address: String,
    agent: AgentClient<Channel>,
}

impl Client {
    /// Connects to `host:port` or `http://host:port`.
    pub async fn connect(address: &str) -> Result<Self, Fault> {
        let uri = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
        let endpoint = Endpoint::from_shared(uri)
            .map_err(|_| Fault::Rejected(format!("`{address}` is not a valid address; write HOST:PORT")))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        let channel = match tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect()).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => {
                return Err(Fault::Unavailable(format!(
                    "cannot connect to `{address}`: {}",
                    innermost(&error)
                )));
            }
            Err(_) => return Err(Fault::Unavailable(format!("cannot connect to `{address}`: no answer"))),
        };
        let agent = AgentClient::new(channel)
            .max_decoding_message_size(limits::MESSAGE_BYTES)
            .max_encoding_message_size(limits::MESSAGE_BYTES);
        Ok(Self { address: address.to_owned(), agent })
    }
}

/// Returns how long the call may take. Refuses a message that is too long: tonic would report it as a broken
/// connection, and it would be retried forever.
fn deadline_of(request: &impl prost::Message) -> Result<Duration, Fault> {
    match request.encoded_len() {
        length if length > limits::MESSAGE_BYTES => Err(Fault::Rejected(format!(
            "a message of {length} bytes is longer than {}",
            limits::MESSAGE_BYTES
        ))),
        length => Ok(deadline(length)),
    }
}

/// Tonic returns `transport error`; the useful cause is the innermost.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Explains a failed hello to a port without a server of this protocol, most likely the other port of the right server.
/// `fault::to_status` uses none of these codes.
fn foreign(address: &str, status: &Status) -> Option<Fault> {
    match status.code() {
        Code::Unimplemented
        | Code::Unknown
        | Code::Internal
        | Code::PermissionDenied
        | Code::Unauthenticated => {}
        _ => return None,
    }
    let what = match std::error::Error::source(status) {
        // A server that is ending looks the same.
        Some(source) => format!("closed the connection during hello ({})", innermost(source)),
        None => "does not support the agent protocol".to_owned(),
    };
    Some(Fault::Unavailable(format!(
        "`{address}` {what}; is this the REST port? agents connect to the gRPC port, by default {AGENT_PORT}"
    )))
}

async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(deadline, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(from_status(&status)),
        Err(_) => Err(no_answer(deadline)),
    }
}

fn no_answer(deadline: Duration) -> Fault {
    Fault::TimedOut(format!("no answer within {} s", deadline.as_secs()))
}

#[async_trait]
impl Link for Client {
    async fn hello(&self, hello: Hello) -> Result<Welcome, Fault> {
        let mut agent = self.agent.clone();
        let request = hello_to_wire(hello);
        let deadline = deadline_of(&request)?;
        match tokio::time::timeout(deadline, agent.hello(request)).await {
            Ok(Ok(response)) => welcome_from_wire(response.into_inner()),
            Ok(Err(status)) => Err(foreign(&self.address, &status).unwrap_or_else(|| from_status(&status))),
            Err(_) => Err(no_answer(deadline)),
        }
    }

    async fn register(&self, register: Register) -> Result<Registered, Fault> {
        let request = register_to_wire(&register)?;
        let wire::RegisterResponse { reset } =
            within(deadline_of(&request)?, self.agent.clone().register(request)).await?;
        Ok(Registered { reset })
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer, Fault> {
        let request = heartbeat_to_wire(heartbeat);
        let answer = within(deadline_of(&request)?, self.agent.clone().heartbeat(request)).await?;
        heartbeat_answer_from_wire(answer)
    }

    async fn poll(&self, poll: Poll) -> Result<PollAnswer, Fault> {
        let deadline = poll_deadline(poll.wait);
        poll_answer_from_wire(within(deadline, self.agent.clone().poll(poll_to_wire(poll))).await?)
    }

    async fn report(&self, report: Report) -> Result<ReportAnswer, Fault> {
        let request = report_to_wire(report);
        report_answer_from_wire(within(deadline_of(&request)?, self.agent.clone().report(request)).await?)
    }

    async fn output(&self, output: Output) -> Result<(), Fault> {
        let request = output_to_wire(output);
        let wire::OutputResponse {} =
            within(deadline_of(&request)?, self.agent.clone().output(request)).await?;
        Ok(())
    }
}
