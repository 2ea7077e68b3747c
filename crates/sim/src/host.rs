//! Owns an agent's machine: the processes on it, how long they run, how they end, and which ones survive a crash of the
//! agent. It records them in `Truth`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_agent::Host;
use downbeat_backends::{Backend, Call, Finish, Identity, Stream};
use downbeat_core::Dice;
use downbeat_core::backend::{BackendSchema, Catalogue};
use downbeat_core::execution::Verdict;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::gate::Gate;
use crate::world::World;

/// One machine during one session of its agent. Processes outlive the session; `Truth` has them.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) world: Arc<World>,
    pub(crate) agent: usize,
    pub(crate) incarnation: u64,
    pub(crate) gate: Gate,
    pub(crate) seed: u64,
    /// Its processes ignore the request to stop.
    pub(crate) is_deaf: bool,
    /// Ends the processes that crashes left on this machine. Each sweep replaces it.
    pub(crate) orphans: Arc<Mutex<CancellationToken>>,
}

impl Machine {
    fn orphans(&self) -> MutexGuard<'_, CancellationToken> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Host for Machine {
    fn backends(&self) -> Vec<Arc<dyn Backend>> {
        vec![Arc::new(Work { machine: self.clone() })]
    }

    fn capabilities(&self) -> BTreeMap<String, Value> {
        BTreeMap::from([("cpu".to_owned(), Value::from(4)), ("os".to_owned(), Value::from("sim"))])
    }

    async fn sweep(&self, grace: Duration) -> Vec<Identity> {
        let alive = |world: &World| -> Vec<Identity> {
            world.truth(|truth| {
                let mine = truth.processes.iter().filter(|process| process.agent == self.agent);
                mine.filter(|process| process.ended.is_none()).map(|process| process.identity).collect()
            })
        };
        let found = alive(&self.world);
        if found.is_empty() {
            return found;
        }
        let patience = self.world.up_to(grace);
        tokio::time::sleep(patience).await;
        self.gate.pass().await;
        std::mem::take(&mut *self.orphans()).cancel();
        while !alive(&self.world).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.gate.pass().await;
        self.world.log(format_args!("a{} swept {} left running", self.agent, found.len()));
        found
    }
}

/// The backend `test`; the seed decides its outcomes, not the params.
#[derive(Debug)]
struct Work {
    machine: Machine,
}

/// How one attempt goes if nothing interferes.
struct Course {
    duration: Duration,
    verdict: Verdict,
    /// The time from the stop request until it stops.
    stop_delay: Duration,
    /// The number of lines that it prints.
    lines: usize,
}

impl Work {
    fn course(&self, identity: Identity, grace: Duration) -> Course {
        let (high, low) = identity.execution.0.as_u64_pair();
        let mut dice =
            Dice::new(self.machine.seed ^ high ^ low.rotate_left(17) ^ u64::from(identity.attempt));
        dice.next_u64();
        let duration = match dice.below(10) {
            0..4 => Duration::ZERO,
            4..8 => dice.up_to(Duration::from_secs(3)),
            8 => dice.up_to(Duration::from_secs(15)),
            _ => dice.up_to(Duration::from_secs(60)),
        };
        let verdict = if dice.below(100) < 80 { Verdict::Succeeded } else { Verdict::Failed };
        let stop_delay = if dice.below(2) == 0 { Duration::ZERO } else { dice.up_to(grace) };
        // Sometimes more than fits into a report.
        let lines = match dice.below(30) {
            0 => 4_000,
            1..10 => 1,
            _ => 0,
        };
        Course { duration, verdict, stop_delay, lines }
    }
}

#[async_trait]
impl Backend for Work {
    fn schema(&self) -> BackendSchema {
        Catalogue::builtin().backend("test").expect("the catalogue has it").clone()
    }

    async fn run(&self, call: Call) -> Finish {
        let machine = &self.machine;
        machine.gate.pass().await;
        let course = self.course(call.identity, call.grace);
        let mut running = Running::begin(machine, call.identity, course.duration);
        if course.lines > 0 {
            let text = format!("{} says\n", call.identity).repeat(course.lines);
            call.output.write(Stream::Stdout, text.as_bytes());
        }
        if let Some(file) = &call.values {
            let line = format!("v={}\n", call.identity);
            std::fs::write(file, line).expect("the agent's disk is healthy");
        }
        if course.duration.is_zero() {
            return running.finish(course.verdict);
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(course.duration) => running.finish(course.verdict),
            () = call.cancel.cancelled() => {
                tokio::time::sleep(course.stop_delay).await;
                if machine.is_deaf {
                    running.go_on_alone();
                    return Finish::cancelled(None);
                }
                running.finish(Verdict::Cancelled)
            }
        }
    }
}

/// A process. If its agent crashes, the process ends too or continues as an orphan.
struct Running<'a> {
    machine: &'a Machine,
    index: usize,
    ends: tokio::time::Instant,
}

impl<'a> Running<'a> {
    fn begin(machine: &'a Machine, identity: Identity, duration: Duration) -> Self {
        let world = &machine.world;
        world.log(format_args!("a{} begins {identity}", machine.agent));
        let begun = world.now();
        let process = crate::truth::Process {
            identity,
            agent: machine.agent,
            incarnation: machine.incarnation,
            begun,
            ended: None,
            orphaned: false,
            verdict: None,
        };
        let index = world.truth(|truth| {
            truth.processes.push(process);
            truth.processes.len() - 1
        });
        Self { machine, index, ends: tokio::time::Instant::now() + duration }
    }

    fn finish(&mut self, verdict: Verdict) -> Finish {
        let now = self.machine.world.now();
        let identity = self.machine.world.truth(|truth| {
            let process = &mut truth.processes[self.index];
            process.ended = Some(now);
            process.verdict = Some(verdict);
            process.identity
        });
        self.machine.world.log(format_args!("a{} ends {identity} {verdict:?}", self.machine.agent));
        match verdict {
            Verdict::Succeeded => Finish::succeeded(),
            Verdict::Failed => Finish::failed(Some(1), "the seed made it fail"),
            Verdict::Cancelled => Finish::cancelled(None),
        }
    }
}

impl Running<'_> {
    /// Lets the process run to its end although its agent takes it for stopped.
    fn go_on_alone(self) {
        let (world, index, ends) = (self.machine.world.clone(), self.index, self.ends);
        world.truth(|truth| truth.processes[index].verdict = Some(Verdict::Cancelled));
        std::mem::forget(self);
        tokio::spawn(async move {
            tokio::time::sleep_until(ends).await;
            let now = world.now();
            world.truth(|truth| truth.processes[index].ended = Some(now));
        });
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let world = self.machine.world.clone();
        let index = self.index;
        let end = move |world: &World| {
            let now = world.now();
            world.truth(|truth| truth.processes[index].ended.get_or_insert(now).to_owned());
        };
        // The truth may have been taken: the world ends.
        if world.truth(|truth| truth.processes.get(index).is_none_or(|process| process.ended.is_some())) {
            return;
        }
        if tokio::runtime::Handle::try_current().is_err() || world.below(2) == 0 {
            end(&world);
            return;
        }
        world.truth(|truth| {
            truth.counts.orphans += 1;
            truth.processes[index].orphaned = true;
        });
        let (ends, swept) = (self.ends, self.machine.orphans().clone());
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = swept.cancelled() => {}
                () = tokio::time::sleep_until(ends) => {}
            }
            end(&world);
        });
    }
}
