//! Owns one container from its creation to its removal: its output, its exit, its early end.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;
use std::{fs, io};

use bollard::Docker as Client;
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::models::ContainerState;
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, InspectContainerOptions,
    StartContainerOptions, StopContainerOptionsBuilder, WaitContainerOptionsBuilder,
};
use downbeat_core::execution::Verdict;
use futures_util::StreamExt;
use tokio::time::{Instant, timeout};

use super::engine::{Engine, is_away, is_status};
use super::left_over::remove;
use super::spec::{self, Spec};
use super::{Docker, image};
use crate::backend::{Call, Finish};
use crate::guard::Work;
use crate::output::{OutputSink, Stream};

/// In addition to the grace period: time for an engine to respond that a container was stopped.
const STOP_MARGIN: Duration = Duration::from_secs(30);
/// After the exit, output is read until none arrives for this long.
const DRAIN: Duration = Duration::from_secs(5);
/// The interval of checks for an engine that cannot be reached.
const LOOK: Duration = Duration::from_millis(250);
const EXIT_NOT_FOUND: i32 = 127;
const EXIT_NOT_RUNNABLE: i32 = 126;
const EXIT_KILLED: i64 = 137;

type Output = Pin<Box<dyn futures_util::Stream<Item = Result<LogOutput, Error>> + Send>>;

/// Runs a container to its end, or ends it early.
pub(super) async fn run(docker: &Docker, call: &Call, spec: &Spec) -> Finish {
    let (client, mark, values) = match call.cancel.run_until_cancelled(prepare(docker, call, spec)).await {
        None => return Finish::cancelled(None),
        Some(Ok(prepared)) => prepared,
        Some(Err(error)) => return Finish::failed(None, error),
    };
    let name = spec::name(call.identity);
    let body = spec.container(call.identity, &mark, values.as_deref());
    docker.active.lock().insert(call.identity);
    if let Some(guard) = &call.guard {
        guard.watch(&Work::Container { engine: docker.engine.clone(), name: name.clone() }).await;
    }
    let options = CreateContainerOptionsBuilder::default().name(&name).build();
    // Not cancellable: the engine might create it unnoticed.
    let made = client.create_container(Some(options), body).await;
    let finish = match &made {
        Ok(_) => {
            Container { client: &client, engine: &docker.engine, name: &name, call, spec, away: docker.away }
                .attend()
                .await
        }
        Err(error) => {
            Finish::failed(None, format!("cannot create the container: {}", docker.engine.describe(error)))
        }
    };
    // Also after an error: the engine may have created it without responding. A name in use belongs to another
    // container.
    let finish = match remove_made(&client, &name, made.err().as_ref()).await {
        Ok(()) => finish,
        Err(error) => {
            docker.sweep_again().await;
            let error = docker.engine.describe(&error);
            tracing::warn!(execution = %call.identity, container = name, %error, "cannot remove the container; the next run removes it");
            if let Some(guard) = &call.guard {
                guard.leave_over();
            }
            may_run_on(finish, &name)
        }
    };
    docker.active.lock().remove(&call.identity);
    finish
}

/// Prepares the container. Dropping this future loses nothing.
async fn prepare(
    docker: &Docker,
    call: &Call,
    spec: &Spec,
) -> Result<(Client, String, Option<PathBuf>), String> {
    let client = docker.engine.connect().map_err(|error| docker.engine.describe(&error))?;
    for identity in docker.remove_left_over().await? {
        tracing::warn!(execution = %identity, "removed a leftover container");
    }
    image::provide(&client, &docker.engine, spec, &call.output).await?;
    let mark = docker
        .mark()
        .map_err(|error| format!("cannot write the mark of this agent's containers: {error}"))?;
    // An engine on another host does not have this file.
    let file = call.values.as_deref().filter(|_| matches!(docker.engine, Engine::Socket(_)));
    let values = file.map(open_to_all).transpose();
    let values = values
        .map_err(|error| format!("cannot share the file of its outputs with the container: {error}"))?;
    Ok((client, mark, values))
}

/// Returns the absolute path of the file of outputs, writable for any user in the container. Users of the host still
/// cannot enter its directory.
fn open_to_all(file: &Path) -> io::Result<PathBuf> {
    if let Some(dir) = file.parent() {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    }
    fs::set_permissions(file, fs::Permissions::from_mode(0o666))?;
    file.canonicalize()
}

async fn remove_made(client: &Client, name: &str, unmade: Option<&Error>) -> Result<(), Error> {
    match unmade {
        Some(error) if !is_away(error) => Ok(()),
        _ => remove(client, name).await,
    }
}

/// Adds to a result that its container could not be removed. A container that succeeded does not run.
fn may_run_on(finish: Finish, name: &str) -> Finish {
    if finish.verdict == Verdict::Succeeded {
        return finish;
    }
    let note = format!("container {name} could not be removed and may still run");
    let error = finish.error.map_or(note.clone(), |error| format!("{error}; {note}"));
    Finish { error: Some(error), ..finish }
}

struct Container<'c> {
    client: &'c Client,
    engine: &'c Engine,
    name: &'c str,
    call: &'c Call,
    spec: &'c Spec,
    away: Duration,
}

/// Why watching a container ended.
enum Watched {
    Exited,
    Cancelled,
    /// The connection to the engine broke.
    CutOff(Error),
}

impl Container<'_> {
    async fn attend(&self) -> Finish {
        // Before the start, so that no output is missed.
        let mut output = match self.attach().await {
            Ok(output) => output,
            // Some engines prepare the program already here.
            Err(error) => return self.not_started(&error),
        };
        if self.call.cancel.is_cancelled() {
            return Finish::cancelled(None);
        }
        if let Err(error) = self.client.start_container(self.name, None::<StartContainerOptions>).await {
            return self.not_started(&error);
        }
        loop {
            match self.watch(&mut output).await {
                Watched::Exited => break,
                Watched::Cancelled => return self.stop(output).await,
                Watched::CutOff(error) => match self.find_again(error).await {
                    Ok(Some(again)) => output = again,
                    Ok(None) => break,
                    Err(finish) => return finish,
                },
            }
        }
        self.drain(output).await;
        match self.state().await {
            Ok(state) => self.ended(&state),
            Err(error) => self.failed("cannot find out how the container ended", &error),
        }
    }

    fn failed(&self, what: &str, error: &Error) -> Finish {
        Finish::failed(None, format!("{what}: {}", self.engine.describe(error)))
    }

    async fn attach(&self) -> Result<Output, Error> {
        let options = AttachContainerOptionsBuilder::default().stdout(true).stderr(true).stream(true).build();
        let attached = self.client.attach_container(self.name, Some(options)).await?;
        Ok(Box::pin(attached.output.fuse()))
    }

    fn not_started(&self, error: &Error) -> Finish {
        let error = self.engine.describe(error);
        let exit_code =
            if error.contains("executable file not found") || error.contains("no such file or directory") {
                Some(EXIT_NOT_FOUND)
            } else if error.contains("permission denied") {
                Some(EXIT_NOT_RUNNABLE)
            } else {
                None
            };
        Finish::failed(exit_code, format!("cannot start the container: {error}"))
    }

    /// Passes the container's output on until it exits.
    async fn watch(&self, output: &mut Output) -> Watched {
        let exit = self.exit();
        tokio::pin!(exit);
        let mut speaking = true;
        loop {
            tokio::select! {
                () = self.call.cancel.cancelled() => return Watched::Cancelled,
                exited = &mut exit => return match exited {
                    Ok(()) => Watched::Exited,
                    Err(error) => Watched::CutOff(error),
                },
                received = output.next(), if speaking => speaking = pass_on(received, &self.call.output),
            }
        }
    }

    /// Waits until the engine reports that the container does not run.
    async fn exit(&self) -> Result<(), Error> {
        loop {
            let options = WaitContainerOptionsBuilder::default().condition("not-running").build();
            let mut waiting = self.client.wait_container(self.name, Some(options));
            match waiting.next().await {
                // The client returns any exit code but 0 as an error.
                Some(Ok(_) | Err(Error::DockerContainerWaitError { .. })) => return Ok(()),
                // Some engines send nothing before the end.
                Some(Err(Error::RequestTimeoutError)) => {}
                Some(Err(error)) => return Err(error),
                None => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            }
        }
    }

    async fn state(&self) -> Result<ContainerState, Error> {
        let found = self.client.inspect_container(self.name, None::<InspectContainerOptions>).await?;
        Ok(found.state.unwrap_or_default())
    }

    /// Finds the container after the connection broke. Returns its further output, `None` if it ended, or the result of
    /// the attempt if the engine does not come back.
    async fn find_again(&self, first: Error) -> Result<Option<Output>, Finish> {
        tracing::warn!(container = self.name, error = %self.engine.describe(&first), "lost the connection to the container engine");
        let deadline = Instant::now() + self.away;
        loop {
            let error = match self.state().await {
                Ok(state) if state.running == Some(true) => match self.attach().await {
                    Ok(output) => {
                        self.call.output.write(
                            Stream::Stderr,
                            b"downbeat: lost the connection to the container engine; output may be missing here\n",
                        );
                        return Ok(Some(output));
                    }
                    Err(error) => error,
                },
                Ok(_) => return Ok(None),
                Err(error) => error,
            };
            if is_status(&error, 404) {
                return Err(Finish::failed(None, "the container was removed from outside while it ran"));
            }
            if !is_away(&error) {
                return Err(self.failed("cannot watch the container", &error));
            }
            if Instant::now() > deadline {
                return Err(self.failed("lost the container while it ran", &error));
            }
            tokio::select! {
                () = self.call.cancel.cancelled() => return Err(Finish::cancelled(None)),
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Asks the container to end, forces it after the grace period, and passes on its last output. Its removal ensures
    /// that nothing is left of it.
    async fn stop(&self, mut output: Output) -> Finish {
        // Engines support whole seconds only.
        let grace = i32::try_from(self.call.grace.as_millis().div_ceil(1000)).unwrap_or(i32::MAX);
        let options = StopContainerOptionsBuilder::default().t(grace).build();
        let client = self.client.clone().with_timeout(self.call.grace + STOP_MARGIN);
        let stopping = client.stop_container(self.name, Some(options));
        tokio::pin!(stopping);
        let mut speaking = true;
        let stopped = loop {
            tokio::select! {
                stopped = &mut stopping => break stopped,
                received = output.next(), if speaking => speaking = pass_on(received, &self.call.output),
            }
        };
        if let Err(error) = stopped {
            tracing::warn!(container = self.name, error = %self.engine.describe(&error), "cannot stop a container");
            return Finish::cancelled(None);
        }
        self.drain(output).await;
        let code = self.state().await.ok().and_then(|state| state.exit_code);
        Finish::cancelled(code.and_then(|code| i32::try_from(code).ok()))
    }

    async fn drain(&self, mut output: Output) {
        while let Ok(received) = timeout(DRAIN, output.next()).await {
            if !pass_on(received, &self.call.output) {
                return;
            }
        }
    }

    fn ended(&self, state: &ContainerState) -> Finish {
        let code = state.exit_code.unwrap_or(-1);
        if code == 0 {
            return Finish::succeeded();
        }
        let error = match (state.oom_killed, self.spec.memory.as_deref()) {
            (Some(true), Some(limit)) => {
                format!("exited with code {code}: out of memory (its limit is {limit})")
            }
            (Some(true), None) => format!("exited with code {code}: out of memory"),
            // Not every engine returns why it was killed.
            (_, Some(limit)) if code == EXIT_KILLED => {
                format!("exited with code {code}: killed, possibly for exceeding its memory limit of {limit}")
            }
            _ => format!("exited with code {code}"),
        };
        let received = state.error.as_deref().filter(|received| !received.is_empty());
        let error = received.map_or(error.clone(), |received| format!("{error}: {received}"));
        Finish::failed(i32::try_from(code).ok(), error)
    }
}

/// Passes output on. Returns whether there may be more.
fn pass_on(received: Option<Result<LogOutput, Error>>, output: &OutputSink) -> bool {
    match received {
        Some(Ok(LogOutput::StdErr { message })) => output.write(Stream::Stderr, &message),
        Some(Ok(
            LogOutput::StdOut { message } | LogOutput::Console { message } | LogOutput::StdIn { message },
        )) => output.write(Stream::Stdout, &message),
        // The engine knows whether the container ended as well.
        Some(Err(_)) | None => return false,
    }
    true
}
