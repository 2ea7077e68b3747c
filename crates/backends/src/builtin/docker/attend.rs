//! Owns one container from its making to its removal: its output, its exit, its end when it is to stop.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

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

/// Beyond the grace period, for an engine to say that a container was stopped.
const STOP_MARGIN: Duration = Duration::from_secs(30);
/// After the exit, what is on its way is read until there is none for this long.
const DRAIN: Duration = Duration::from_secs(5);
/// Between looks for an engine that is away.
const LOOK: Duration = Duration::from_millis(250);
const EXIT_NOT_FOUND: i32 = 127;
const EXIT_NOT_RUNNABLE: i32 = 126;
const EXIT_KILLED: i64 = 137;

type Output = Pin<Box<dyn futures_util::Stream<Item = Result<LogOutput, Error>> + Send>>;

/// Runs it to its end, or ends it early.
pub(super) async fn run(docker: &Docker, call: &Call, spec: &Spec) -> Finish {
    let prepared = tokio::select! {
        biased;
        () = call.cancel.cancelled() => return Finish::cancelled(None),
        prepared = prepare(docker, call, spec) => prepared,
    };
    let (client, mark, values) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return Finish::failed(None, error),
    };
    let name = spec::name(call.identity);
    let body = spec.container(call.identity, &mark, values.as_deref());
    docker.active().insert(call.identity);
    if let Some(guard) = &call.guard {
        guard.watch(&Work::Container { engine: docker.engine.clone(), name: name.clone() }).await;
    }
    let options = CreateContainerOptionsBuilder::default().name(&name).build();
    // Not to be cancelled: it would be made, and nobody would know.
    let made = client.create_container(Some(options), body).await;
    let finish = match &made {
        Ok(_) => {
            Container { client: &client, engine: &docker.engine, name: &name, call, spec, away: docker.away }
                .attend()
                .await
        }
        Err(error) => {
            Finish::failed(None, format!("cannot make the container: {}", docker.engine.describe(error)))
        }
    };
    // Also after an error: the engine may have made it and not come to say so. A name that was taken is not this one's.
    let finish = match remove_made(&client, &name, made.err().as_ref()).await {
        Ok(()) => finish,
        Err(error) => {
            docker.doubt().await;
            let error = docker.engine.describe(&error);
            tracing::warn!(execution = %call.identity, container = name, %error, "a container is left over; the next run removes it");
            if let Some(guard) = &call.guard {
                guard.leave_over();
            }
            may_run_on(finish, &name)
        }
    };
    docker.active().remove(&call.identity);
    finish
}

/// All that comes before the container; nothing of it is lost when it is dropped.
async fn prepare(
    docker: &Docker,
    call: &Call,
    spec: &Spec,
) -> Result<(Client, String, Option<PathBuf>), String> {
    let client = docker.engine.connect().map_err(|error| docker.engine.describe(&error))?;
    for identity in docker.remove_left_over().await? {
        tracing::warn!(execution = %identity, "removed a container that was left over");
    }
    image::provide(&client, &docker.engine, spec, &call.output).await?;
    let mark =
        docker.mark().map_err(|error| format!("cannot keep the mark of this agent's containers: {error}"))?;
    // Another host has no such file.
    let file = call.values.as_deref().filter(|_| matches!(docker.engine, Engine::Socket(_)));
    let values = file.map(open_to_all).transpose();
    let values =
        values.map_err(|error| format!("cannot hand the file of its outputs to the container: {error}"))?;
    Ok((client, mark, values))
}

/// The file of values, with its whole path, for whichever user writes in the container. Who may not enter the directory
/// on the host still may not write.
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

/// Adds to a result that its container could not be removed. One that ended well does not run.
fn may_run_on(finish: Finish, name: &str) -> Finish {
    if finish.verdict == Verdict::Succeeded {
        return finish;
    }
    let told = format!("container {name} could not be removed and may still run");
    let error = finish.error.map_or(told.clone(), |error| format!("{error}; {told}"));
    Finish { error: Some(error), ..finish }
}

/// One that was made.
struct Container<'c> {
    client: &'c Client,
    engine: &'c Engine,
    name: &'c str,
    call: &'c Call,
    spec: &'c Spec,
    away: Duration,
}

/// What ended the watch over a container.
enum Watched {
    Exited,
    Cancelled,
    /// Nobody says any more what becomes of it.
    CutOff(Error),
}

impl Container<'_> {
    async fn attend(&self) -> Finish {
        // Before the start, so that its first words are heard.
        let mut output = match self.attach().await {
            Ok(output) => output,
            // Some engines prepare its program already here.
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
            Err(error) => self.failed("cannot tell how the container ended", &error),
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
        let told = self.engine.describe(error);
        let exit_code =
            if told.contains("executable file not found") || told.contains("no such file or directory") {
                Some(EXIT_NOT_FOUND)
            } else if told.contains("permission denied") {
                Some(EXIT_NOT_RUNNABLE)
            } else {
                None
            };
        Finish::failed(exit_code, format!("cannot start the container: {told}"))
    }

    /// Passes its output on until it exits.
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
                said = output.next(), if speaking => speaking = pass_on(said, &self.call.output),
            }
        }
    }

    /// Until the engine says that it does not run.
    async fn exit(&self) -> Result<(), Error> {
        loop {
            let options = WaitContainerOptionsBuilder::default().condition("not-running").build();
            let mut waiting = self.client.wait_container(self.name, Some(options));
            match waiting.next().await {
                // Any code but 0 is an error to the client.
                Some(Ok(_) | Err(Error::DockerContainerWaitError { .. })) => return Ok(()),
                // Some engines say nothing at all before the end.
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

    /// After the connection broke: its output from here on, nothing when it ended, and how the attempt ends when the
    /// engine does not come back.
    async fn find_again(&self, first: Error) -> Result<Option<Output>, Finish> {
        tracing::warn!(container = self.name, error = %self.engine.describe(&first), "the container engine is away");
        let deadline = Instant::now() + self.away;
        loop {
            let error = match self.state().await {
                Ok(state) if state.running == Some(true) => match self.attach().await {
                    Ok(output) => {
                        self.call.output.write(
                            Stream::Stderr,
                            b"downbeat: the container engine was away; output may be missing here\n",
                        );
                        return Ok(Some(output));
                    }
                    Err(error) => error,
                },
                Ok(_) => return Ok(None),
                Err(error) => error,
            };
            if is_status(&error, 404) {
                return Err(Finish::failed(None, "the container was removed by somebody else while it ran"));
            }
            if !is_away(&error) {
                return Err(self.failed("cannot tell what becomes of the container", &error));
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

    /// Asks it to end, by force after the grace period, and reads its last words meanwhile. That nothing is left of it,
    /// its removal sees to.
    async fn stop(&self, mut output: Output) -> Finish {
        // Whole seconds are all that engines know.
        let grace = i32::try_from(self.call.grace.as_millis().div_ceil(1000)).unwrap_or(i32::MAX);
        let options = StopContainerOptionsBuilder::default().t(grace).build();
        let client = self.client.clone().with_timeout(self.call.grace + STOP_MARGIN);
        let stopping = client.stop_container(self.name, Some(options));
        tokio::pin!(stopping);
        let mut speaking = true;
        let stopped = loop {
            tokio::select! {
                stopped = &mut stopping => break stopped,
                said = output.next(), if speaking => speaking = pass_on(said, &self.call.output),
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
        while let Ok(said) = timeout(DRAIN, output.next()).await {
            if !pass_on(said, &self.call.output) {
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
            // Not every engine says why it was killed.
            (_, Some(limit)) if code == EXIT_KILLED => {
                format!("exited with code {code}: killed, maybe for more memory than its limit of {limit}")
            }
            _ => format!("exited with code {code}"),
        };
        let said = state.error.as_deref().filter(|said| !said.is_empty());
        let error = said.map_or(error.clone(), |said| format!("{error}: {said}"));
        Finish::failed(i32::try_from(code).ok(), error)
    }
}

/// Answers whether there may be more.
fn pass_on(said: Option<Result<LogOutput, Error>>, output: &OutputSink) -> bool {
    match said {
        Some(Ok(LogOutput::StdErr { message })) => output.write(Stream::Stderr, &message),
        Some(Ok(
            LogOutput::StdOut { message } | LogOutput::Console { message } | LogOutput::StdIn { message },
        )) => output.write(Stream::Stdout, &message),
        // Whether it ended as well is told by the engine, if it can.
        Some(Err(_)) | None => return false,
    }
    true
}
