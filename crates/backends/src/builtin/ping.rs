//! The backend `ping`: checks that the agent responds and its output arrives.

use async_trait::async_trait;
use downbeat_core::backend::BackendSchema;

use crate::backend::{Backend, Call, Finish};
use crate::output::Stream;

#[derive(Clone, Copy, Debug)]
pub struct Ping;

#[async_trait]
impl Backend for Ping {
    fn schema(&self) -> BackendSchema {
        super::schema("ping")
    }

    async fn run(&self, call: Call) -> Finish {
        let hostname = nix::unistd::gethostname().unwrap_or_default();
        call.output.write(Stream::Stdout, format!("pong {}\n", hostname.to_string_lossy()).as_bytes());
        Finish::succeeded()
    }
}
