//! Owns the services that servers call for jobs: hooks that allow a run, refuse it, fail, take their time, or never answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use downbeat_core::ids::RunId;
use downbeat_server::Outside;
use serde_json::Value;

use crate::gate::Gate;
use crate::truth::HookCall;
use crate::world::World;

/// The address of a hook that never answers, also when everything else has healed.
pub(crate) const HANGS: &str = "http://hooks.test/hangs";
pub(crate) const ANSWERS: &str = "http://hooks.test/answers";
/// The longest pause before an answer: longer than most timeouts.
const SLOW: Duration = Duration::from_secs(8);

/// The services as one session of a server reaches them.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) world: Arc<World>,
    pub(crate) gate: Gate,
}

#[async_trait]
impl Outside for Services {
    async fn call(&self, url: &str, body: &Bytes) -> Result<u16, String> {
        self.gate.pass().await;
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
        let is_healed = self.world.truth(|truth| truth.healed.is_some());
        let kind = if is_healed { 0 } else { self.world.below(10) };
        let status = match kind {
            _ if url == HANGS => None,
            0..6 => Some(200),
            6 => Some(404),
            7 => Some(500),
            _ => None,
        };
        let (run, hook) = (RunId::from(text("run")), text("event"));
        self.world.log(format_args!("{hook} of {run}: {status:?}"));
        self.world.truth(|truth| truth.hooks.push(HookCall { run, hook, status }));
        match status {
            None if kind == 9 => Err("connection refused".to_owned()),
            None => std::future::pending().await,
            Some(status) => {
                if kind == 5 {
                    tokio::time::sleep(self.world.up_to(SLOW)).await;
                }
                self.gate.pass().await;
                Ok(status)
            }
        }
    }
}
