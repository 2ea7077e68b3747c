//! Owns the description of a container: params in, the engine's API out. No text is inserted into another except where
//! the engine's format requires it (`NAME=VALUE`), and patterns keep those apart.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use bollard::models::{ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountType};
use downbeat_core::backend::Params;
use downbeat_core::shown::shown;
use serde_json::Value;

use super::super::params::{is_on, map, text, texts};
use crate::backend::Identity;
use crate::environment::{EXECUTION, OUTPUT};

/// The path in the container of the file in which a program sets outputs for later tasks.
const VALUES_FILE: &str = "/run/downbeat/output";

pub(super) const LABEL_EXECUTION: &str = "downbeat.execution";
pub(super) const LABEL_ATTEMPT: &str = "downbeat.attempt";
pub(super) const LABEL_NODE: &str = "downbeat.node";

#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) image: String,
    pub(super) pull: Pull,
    /// As it was written.
    pub(super) memory: Option<String>,
    body: ContainerCreateBody,
    env: BTreeMap<String, String>,
}

/// When the image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pull {
    Never,
    Missing,
    Always,
}

pub(super) fn read(params: &Params) -> Result<Spec, String> {
    let image = text(params, "image").ok_or("param `image` is missing")?.to_owned();
    let memory = text(params, "memory");
    let bytes = memory.map(bytes).transpose()?;
    let host = HostConfig {
        mounts: given(texts(params, "mounts").iter().map(|text| mount(text)).collect::<Result<_, _>>()?),
        memory: bytes,
        // Otherwise the engine would add the same amount of swap.
        memory_swap: bytes,
        nano_cpus: text(params, "cpus").map(nano_cpus).transpose()?,
        pids_limit: params.get("pids").and_then(Value::as_i64),
        network_mode: text(params, "network").map(str::to_owned),
        readonly_rootfs: is_on(params, "read_only").then_some(true),
        // Output is read as it is written, so the engine need not store it.
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        ..HostConfig::default()
    };
    let body = ContainerCreateBody {
        image: Some(image.clone()),
        cmd: given(texts(params, "command")),
        entrypoint: given(texts(params, "entrypoint")),
        working_dir: text(params, "working_dir").map(str::to_owned),
        user: text(params, "user").map(str::to_owned),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    };
    let pull = match text(params, "pull") {
        Some("never") => Pull::Never,
        Some("always") => Pull::Always,
        _ => Pull::Missing,
    };
    Ok(Spec {
        image,
        pull,
        memory: memory.map(str::to_owned),
        body,
        env: map(params, "env").into_iter().collect(),
    })
}

impl Spec {
    /// Returns the request that creates the container.
    pub(super) fn container(
        &self,
        identity: Identity,
        node: &str,
        values: Option<&Path>,
    ) -> ContainerCreateBody {
        let mut env = self.env.clone();
        // As with every program, to find its processes; a job cannot change it.
        env.insert(EXECUTION.to_owned(), identity.to_string());
        let mut body = self.body.clone();
        if let Some(file) = values {
            env.insert(OUTPUT.to_owned(), VALUES_FILE.to_owned());
            let host = body.host_config.get_or_insert_default();
            host.mounts.get_or_insert_default().push(Mount {
                typ: Some(MountType::BIND),
                source: Some(file.to_string_lossy().into_owned()),
                target: Some(VALUES_FILE.to_owned()),
                ..Mount::default()
            });
        }
        body.env = Some(env.into_iter().map(|(name, value)| format!("{name}={value}")).collect());
        body.labels = Some(HashMap::from([
            (LABEL_EXECUTION.to_owned(), identity.execution.to_string()),
            (LABEL_ATTEMPT.to_owned(), identity.attempt.to_string()),
            (LABEL_NODE.to_owned(), node.to_owned()),
        ]));
        body
    }
}

pub(super) fn name(identity: Identity) -> String {
    format!("downbeat-{}-{}", identity.execution, identity.attempt)
}

fn given<T>(items: Vec<T>) -> Option<Vec<T>> {
    Some(items).filter(|items| !items.is_empty())
}

/// Reads `SOURCE:TARGET` or `SOURCE:TARGET:ro`. As typed mounts, since the engine's `binds` create directories for
/// missing sources.
fn mount(text: &str) -> Result<Mount, String> {
    let mut parts = text.split(':');
    let (Some(source), Some(target), mode, None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(format!("param `mounts`: `{}` is not SOURCE:TARGET[:ro]", shown(text)));
    };
    let typ = if source.starts_with('/') { MountType::BIND } else { MountType::VOLUME };
    Ok(Mount {
        typ: Some(typ),
        source: Some(source.to_owned()),
        target: Some(target.to_owned()),
        read_only: Some(mode == Some("ro")),
        ..Mount::default()
    })
}

/// Reads `512m`: units are powers of 1024, as engines use them.
fn bytes(text: &str) -> Result<i64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.to_ascii_lowercase().as_bytes().first() {
        None | Some(b'b') => Some(1),
        Some(b'k') => Some(1 << 10),
        Some(b'm') => Some(1 << 20),
        Some(b'g') => Some(1 << 30),
        Some(_) => None,
    };
    factor
        .zip(number.parse::<i64>().ok())
        .and_then(|(factor, number)| number.checked_mul(factor))
        .ok_or_else(|| format!("param `memory`: `{}` is not a valid size; write 512m or 2g", shown(text)))
}

fn nano_cpus(text: &str) -> Result<i64, String> {
    let wrong = || format!("param `cpus`: `{}` is not a valid number; write 2 or 0.5", shown(text));
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    // Digit by digit, since 0.1 is not a binary fraction.
    let nanos: i64 = format!("{part:0<9}").parse().map_err(|_| wrong())?;
    let whole: i64 = whole.parse().map_err(|_| wrong())?;
    whole.checked_mul(1_000_000_000).and_then(|whole| whole.checked_add(nanos)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, expected) in [
            ("4096", 4096),
            ("7b", 7),
            ("512m", 512 << 20),
            ("512M", 512 << 20),
            ("1kB", 1024),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(bytes(text).unwrap(), expected, "{text}");
        }
        assert!(bytes("9999999999999999g").unwrap_err().starts_with("param `memory`"));
    }

    #[test]
    fn processors_are_counted_in_billionths() {
        for (text, expected) in [("2", 2_000_000_000), ("0.5", 500_000_000), ("1.000000001", 1_000_000_001)] {
            assert_eq!(nano_cpus(text).unwrap(), expected, "{text}");
        }
    }
}
