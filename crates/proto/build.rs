//! Generates the protocol's code without protoc, and the descriptors that the reflection service returns.

use std::env;
use std::fs;
use std::path::Path;

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/agent.proto");
    let descriptors = protox::compile(["proto/agent.proto"], ["proto"])?;
    let directory = env::var("OUT_DIR")?;
    fs::write(Path::new(&directory).join("agent_descriptor.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
