//! Owns the address of a container engine, and describes its errors in one line.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fmt};

use bollard::API_DEFAULT_VERSION;
use bollard::errors::Error;
use downbeat_core::shown::shown;

/// The time for each response. Creating a container of a large image on a busy disk takes long.
const PATIENCE: Duration = Duration::from_secs(60);
const USUAL: [&str; 3] = ["/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock"];
/// In the directory of the user's own sockets.
const USUAL_OF_USER: [&str; 2] = ["docker.sock", "podman/podman.sock"];

/// The address of an engine: a socket of this host, or a TCP address with plain HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    Socket(PathBuf),
    Address(String),
}

impl Engine {
    /// Reads a path, `unix://PATH` or `tcp://HOST:PORT`.
    pub fn read(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{}` is not a valid address of a container engine; write unix:///PATH or tcp://HOST:PORT",
                shown(text)
            )
        };
        let path = match text.split_once("://") {
            None => text,
            Some(("unix", path)) => path,
            Some(("tcp" | "http", address)) => {
                let (host, port) = address.trim_end_matches('/').rsplit_once(':').ok_or_else(wrong)?;
                let plain = !host.is_empty() && !host.contains(['/', '@', ' ']);
                return match port.parse::<u16>() {
                    Ok(port) if plain => Ok(Self::Address(format!("{host}:{port}"))),
                    _ => Err(wrong()),
                };
            }
            Some(_) => return Err(wrong()),
        };
        if path.starts_with('/') { Ok(Self::Socket(path.into())) } else { Err(wrong()) }
    }

    /// Returns the engine of `DOCKER_HOST`, or the first of the usual sockets that exists.
    pub fn found() -> Option<Self> {
        if let Some(host) = env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty()) {
            return match Self::read(&host) {
                Ok(engine) => Some(engine),
                Err(error) => {
                    tracing::warn!("DOCKER_HOST: {error}; using no container engine");
                    None
                }
            };
        }
        let own = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let of_user = own.iter().flat_map(|dir| USUAL_OF_USER.map(|name| dir.join(name)));
        let usual = USUAL.into_iter().map(PathBuf::from).chain(of_user);
        usual.into_iter().find(|path| is_socket(path)).map(Self::Socket)
    }

    pub(super) fn connect(&self) -> Result<bollard::Docker, Error> {
        let patience = PATIENCE.as_secs();
        match self {
            Self::Socket(path) => {
                bollard::Docker::connect_with_unix(&path.to_string_lossy(), patience, API_DEFAULT_VERSION)
            }
            Self::Address(address) => {
                bollard::Docker::connect_with_http(&format!("tcp://{address}"), patience, API_DEFAULT_VERSION)
            }
        }
    }

    pub(super) fn describe(&self, error: &Error) -> String {
        match error {
            Error::DockerResponseServerError { message, .. } => one_line(message),
            Error::DockerStreamError { error } => one_line(error),
            Error::RequestTimeoutError => {
                format!("the container engine at {self} does not respond; is it overloaded?")
            }
            error if is_away(error) => {
                format!("cannot reach the container engine at {self} ({}); is it running?", innermost(error))
            }
            error => one_line(&error.to_string()),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::Address(address) => write!(f, "tcp://{address}"),
        }
    }
}

fn is_socket(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Returns whether the engine could not be reached. A retry may succeed.
pub(super) fn is_away(error: &Error) -> bool {
    matches!(
        error,
        Error::IOError { .. }
            | Error::HyperResponseError { .. }
            | Error::HyperLegacyError { .. }
            | Error::RequestTimeoutError
            | Error::SocketNotFoundError(_)
    )
}

pub(super) fn is_status(error: &Error, code: u16) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code, .. } if *status_code == code)
}

fn innermost(error: &Error) -> String {
    if let Error::SocketNotFoundError(_) = error {
        return "the socket does not exist".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    one_line(&cause.to_string())
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_a_socket_or_an_address() {
        for (text, read) in [
            ("/run/docker.sock", "/run/docker.sock"),
            ("unix:///run/docker.sock", "/run/docker.sock"),
            ("tcp://10.0.0.1:2375", "tcp://10.0.0.1:2375"),
            ("tcp://[::1]:2375/", "tcp://[::1]:2375"),
        ] {
            assert_eq!(Engine::read(text).unwrap().to_string(), read);
        }
        for wrong in
            ["", "docker.sock", "unix://x", "ssh://host", "tcp://host", "tcp://:1", "tcp://a/b:1", "fd://"]
        {
            assert!(
                Engine::read(wrong).unwrap_err().contains("is not a valid address of a container engine"),
                "{wrong}"
            );
        }
    }
}
