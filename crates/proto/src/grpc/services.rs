//! Owns all services of the agents' port: the protocol, and gRPC's own health and reflection services.

use std::convert::Infallible;
use std::sync::Arc;

use tonic::codegen::{BoxFuture, Service as _, StdError, http};
use tonic::service::Routes;
use tonic_reflection::server::Builder;

use super::health::health;
use super::host::{Body, Service, service};
use crate::{Link, Ready};

/// Compiled from `proto/agent.proto`.
const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("agent_descriptor");

/// All services of one port. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Services {
    agent: Service,
    /// Health and reflection.
    common: Routes,
}

/// Returns whether a call belongs to the protocol. The others may be streams.
pub fn is_agent_call<B>(request: &http::Request<B>) -> bool {
    !request.uri().path().starts_with("/grpc.")
}

impl Services {
    pub fn new(host: Arc<dyn Link>, ready: Arc<dyn Ready>) -> Self {
        let reflection = || {
            Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let mut common = Routes::new(health(ready));
        // These fail only for invalid descriptors, which are part of the program.
        if let Ok(v1) = reflection().build_v1() {
            common = common.add_service(v1);
        }
        // Older tools know only this version.
        if let Ok(v1alpha) = reflection().build_v1alpha() {
            common = common.add_service(v1alpha);
        }
        Self { agent: service(host), common: common.prepare() }
    }

    /// Calls the service that the request names.
    pub fn call<B>(&self, request: http::Request<B>) -> BoxFuture<http::Response<Body>, Infallible>
    where
        B: tonic::codegen::Body<Data = tonic::codegen::Bytes> + Send + 'static,
        B::Error: Into<StdError> + Send + 'static,
    {
        // All services are stateless and always ready. A router would cost each call of each node.
        if is_agent_call(&request) {
            self.agent.clone().call(request)
        } else {
            Box::pin(self.common.clone().call(request))
        }
    }
}
