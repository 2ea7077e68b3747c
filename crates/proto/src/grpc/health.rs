//! Owns gRPC's health service: it returns whether the server can handle calls of agents, on request (`Check`) and with
//! each change (`Watch`).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::host::Service;
use crate::Ready;

/// How often `Watch` checks whether something has changed.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Monitor {
    ready: Arc<dyn Ready>,
}

pub(super) fn health(ready: Arc<dyn Ready>) -> HealthServer<Monitor> {
    HealthServer::new(Monitor { ready })
}

/// The empty name is the server as a whole.
fn is_served(service: &str) -> bool {
    service.is_empty() || service == Service::NAME
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

async fn status(ready: &dyn Ready) -> ServingStatus {
    tokio::select! {
        biased;
        () = ready.stops() => ServingStatus::NotServing,
        is_ready = ready.is_ready() => {
            if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing }
        }
    }
}

/// Sends the status and each change of it, until the client is gone or the server stops.
async fn watch(
    ready: Arc<dyn Ready>,
    is_served: bool,
    changes: mpsc::Sender<Result<HealthCheckResponse, Status>>,
) {
    let mut last = None;
    loop {
        let now = if is_served { status(ready.as_ref()).await } else { ServingStatus::ServiceUnknown };
        if last.replace(now) != Some(now) && changes.send(Ok(response(now))).await.is_err() {
            return;
        }
        tokio::select! {
            () = changes.closed() => return,
            () = ready.stops() => {
                // An open stream would delay the end of the server.
                if last == Some(ServingStatus::Serving) {
                    let _ = changes.send(Ok(response(ServingStatus::NotServing))).await;
                }
                return;
            }
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

#[tonic::async_trait]
impl Health for Monitor {
    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = &request.get_ref().service;
        if !is_served(service) {
            return Err(Status::not_found("this server does not have this service"));
        }
        Ok(Response::new(response(status(self.ready.as_ref()).await)))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(watch(Arc::clone(&self.ready), is_served(&request.get_ref().service), sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}
