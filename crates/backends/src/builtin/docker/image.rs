//! Owns the pulling of an image before a container is created from it.

use bollard::errors::Error;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt;

use super::engine::{Engine, is_status};
use super::spec::{Pull, Spec};
use crate::output::{OutputSink, Stream};

/// Ensures that the image is on the host, or returns why it is not. Dropping this future ends a pull.
pub(super) async fn provide(
    client: &bollard::Docker,
    engine: &Engine,
    spec: &Spec,
    output: &OutputSink,
) -> Result<(), String> {
    let image = &spec.image;
    let there = match client.inspect_image(image).await {
        Ok(_) => true,
        Err(error) if is_status(&error, 404) => false,
        Err(error) => return Err(engine.describe(&error)),
    };
    match (spec.pull, there) {
        (Pull::Never | Pull::Missing, true) => return Ok(()),
        (Pull::Never, false) => {
            return Err(format!("image `{image}` is not on the host, and `pull: never` forbids pulling it"));
        }
        (Pull::Missing, false) | (Pull::Always, _) => {}
    }
    output.write(Stream::Stderr, format!("pulling {image}\n").as_bytes());
    let failed = |why: String| format!("cannot pull image `{image}`: {why}");
    pull(client, image).await.map_err(|error| failed(engine.describe(&error)))?;
    // Not every engine reports a failure in the stream.
    client.inspect_image(image).await.map_err(|error| failed(engine.describe(&error)))?;
    Ok(())
}

async fn pull(client: &bollard::Docker, image: &str) -> Result<(), Error> {
    let mut options = CreateImageOptionsBuilder::default().from_image(image);
    if !is_exact(image) {
        // Without a tag some engines pull all of them.
        options = options.tag("latest");
    }
    let mut steps = client.create_image(Some(options.build()), None, None);
    while let Some(step) = steps.next().await {
        step?;
    }
    Ok(())
}

/// Returns whether the image has a tag or a digest; the port of a registry is neither.
fn is_exact(image: &str) -> bool {
    let last = image.rsplit('/').next().unwrap_or(image);
    last.contains([':', '@'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_not_a_tag() {
        for (image, exact) in
            [("alpine", false), ("alpine:3", true), ("host:5000/a/b", false), ("host:5000/a@sha256:00", true)]
        {
            assert_eq!(is_exact(image), exact, "{image}");
        }
    }
}
