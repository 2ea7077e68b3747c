//! Owns the server's side of gRPC: a service around any `Link` that a tonic server mounts.

use std::sync::Arc;

use downbeat_core::limits;
use tonic::{Request, Response, Status};

use super::fault::to_status;
use super::generated as wire;
use super::generated::agent_server::{Agent, AgentServer};
use super::request::{
    heartbeat_answer_to_wire, heartbeat_from_wire, hello_from_wire, output_from_wire, poll_answer_to_wire,
    poll_from_wire, register_from_wire, report_answer_to_wire, report_from_wire, welcome_to_wire,
};
use crate::Link;
use crate::message::Registered;

/// A `Link` behind the generated service.
#[derive(Debug)]
pub struct Adaptor {
    host: Arc<dyn Link>,
}

/// The service to mount, and the body of its responses.
pub type Service = AgentServer<Adaptor>;
pub type Body = tonic::body::Body;

type Answer<T> = Result<Response<T>, Status>;

/// Returns a service around this `Link`.
pub fn service(host: Arc<dyn Link>) -> Service {
    AgentServer::new(Adaptor { host })
        .max_decoding_message_size(limits::MESSAGE_BYTES)
        .max_encoding_message_size(limits::MESSAGE_BYTES)
}

#[tonic::async_trait]
impl Agent for Adaptor {
    async fn hello(&self, request: Request<wire::HelloRequest>) -> Answer<wire::HelloResponse> {
        let hello = hello_from_wire(request.into_inner()).map_err(to_status)?;
        let welcome = self.host.hello(hello).await.map_err(to_status)?;
        Ok(Response::new(welcome_to_wire(welcome)))
    }

    async fn register(&self, request: Request<wire::RegisterRequest>) -> Answer<wire::RegisterResponse> {
        let register = register_from_wire(request.get_ref()).map_err(to_status)?;
        let Registered { reset } = self.host.register(register).await.map_err(to_status)?;
        Ok(Response::new(wire::RegisterResponse { reset }))
    }

    async fn heartbeat(&self, request: Request<wire::HeartbeatRequest>) -> Answer<wire::HeartbeatResponse> {
        let heartbeat = heartbeat_from_wire(request.into_inner()).map_err(to_status)?;
        let answer = self.host.heartbeat(heartbeat).await.map_err(to_status)?;
        Ok(Response::new(heartbeat_answer_to_wire(answer)))
    }

    async fn poll(&self, request: Request<wire::PollRequest>) -> Answer<wire::PollResponse> {
        let poll = poll_from_wire(request.into_inner()).map_err(to_status)?;
        let answer = self.host.poll(poll).await.map_err(to_status)?;
        Ok(Response::new(poll_answer_to_wire(answer).map_err(to_status)?))
    }

    async fn report(&self, request: Request<wire::ReportRequest>) -> Answer<wire::ReportResponse> {
        let report = report_from_wire(request.into_inner()).map_err(to_status)?;
        let answer = self.host.report(report).await.map_err(to_status)?;
        Ok(Response::new(report_answer_to_wire(answer).map_err(to_status)?))
    }

    async fn output(&self, request: Request<wire::OutputRequest>) -> Answer<wire::OutputResponse> {
        let output = output_from_wire(request.into_inner()).map_err(to_status)?;
        self.host.output(output).await.map_err(to_status)?;
        Ok(Response::new(wire::OutputResponse {}))
    }
}
