//! Owns whether the agents' port reports the server as healthy: the condition of `/readyz`, checked at most once a second,
//! however many clients watch it.

use std::time::Duration;

use async_trait::async_trait;
use downbeat_proto::Ready;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::service::Service;

const VALID_FOR: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Readiness {
    service: Service,
    last: Mutex<Option<(Instant, bool)>>,
}

impl Readiness {
    pub(crate) fn new(service: Service) -> Self {
        Self { service, last: Mutex::default() }
    }
}

#[async_trait]
impl Ready for Readiness {
    async fn is_ready(&self) -> bool {
        let mut last = self.last.lock().await;
        match *last {
            Some((at, is_ready)) if at.elapsed() < VALID_FOR => is_ready,
            _ => {
                let is_ready = self.service.readiness().await.is_ok();
                *last = Some((Instant::now(), is_ready));
                is_ready
            }
        }
    }

    async fn stops(&self) {
        self.service.parts.closing.cancelled().await;
    }
}
