//! The backend `test`: outcomes on request, for trying things out. Changes nothing on the host.

use async_trait::async_trait;
use downbeat_core::Span;
use downbeat_core::backend::BackendSchema;
use serde_json::Value;

use super::params::text;
use crate::backend::{Backend, Call, Finish};
use crate::output::Stream;

#[derive(Clone, Copy, Debug)]
pub struct Test;

#[async_trait]
impl Backend for Test {
    fn schema(&self) -> BackendSchema {
        super::schema("test")
    }

    async fn run(&self, call: Call) -> Finish {
        match call.action.as_str() {
            "noop" => Finish::succeeded(),
            "echo" => {
                let message = text(&call.params, "message").unwrap_or_default();
                call.output.write(Stream::Stdout, format!("{message}\n").as_bytes());
                Finish::succeeded()
            }
            "sleep" => sleep(&call).await,
            "fail" => fail(&call),
            "flaky" => flaky(&call),
            other => Finish::failed(None, format!("backend `test` has no action `{other}`")),
        }
    }
}

async fn sleep(call: &Call) -> Finish {
    let duration: Span = match text(&call.params, "duration").unwrap_or_default().parse() {
        Ok(duration) => duration,
        Err(error) => return Finish::failed(None, format!("param `duration`: {error}")),
    };
    let slept = call.cancel.run_until_cancelled(tokio::time::sleep(duration.0)).await;
    slept.map_or_else(|| Finish::cancelled(None), |()| Finish::succeeded())
}

fn fail(call: &Call) -> Finish {
    let exit_code =
        call.params.get("exit_code").and_then(Value::as_i64).and_then(|code| i32::try_from(code).ok());
    let message = text(&call.params, "message").unwrap_or_default();
    if !message.is_empty() {
        call.output.write(Stream::Stderr, format!("{message}\n").as_bytes());
    }
    let error = if message.is_empty() { "failed as requested" } else { message };
    Finish::failed(Some(exit_code.unwrap_or(1)), error)
}

fn flaky(call: &Call) -> Finish {
    let succeed_on = call.params.get("succeed_on").and_then(Value::as_i64).unwrap_or(1);
    let attempt = call.identity.attempt;
    if i64::from(attempt) >= succeed_on {
        return Finish::succeeded();
    }
    Finish::failed(Some(1), format!("attempt {attempt} fails; attempt {succeed_on} will succeed"))
}
