//! A server in this process: it assigns the work of a test, records all messages, and fails on request.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_agent::{Agent, Connector, Handle, Settings};
use downbeat_core::backend::Params;
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, RunId};
use downbeat_core::work::Origin;
use downbeat_proto::Link;
use downbeat_proto::message::{
    Assignment, Fault, Finished, Heartbeat, HeartbeatAnswer, Hello, LeaseRef, Output, OutputChunk, PROTOCOL,
    Poll, PollAnswer, Receipt, Register, Registered, Report, ReportAnswer, Started, Welcome, WorkKind,
};
use serde_json::{Value, json};
use tokio::sync::Notify;
use uuid::Uuid;

pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// Events, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    Hello,
    Report(Vec<u128>),
    Register,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) seen: Vec<Seen>,
    pub(crate) registered: Vec<Register>,
    pub(crate) heartbeats: Vec<Heartbeat>,
    pub(crate) polls: Vec<Poll>,
    pub(crate) reports: Vec<Report>,
    pub(crate) started: Vec<Started>,
    pub(crate) finished: Vec<Finished>,
    pub(crate) chunks: Vec<OutputChunk>,
    /// The leases that output named.
    pub(crate) speaking: HashSet<LeaseRef>,
    pub(crate) work: Vec<Assignment>,
    /// Work for the next response to a report.
    pub(crate) work_for_report: Vec<Assignment>,
    pub(crate) stop: Vec<LeaseRef>,
    pub(crate) refuse: Vec<LeaseRef>,
    /// Leases that the store does not know.
    pub(crate) unheard: Vec<LeaseRef>,
    /// After this many hellos, the server acts as a release without `keeps_undelivered`.
    pub(crate) hellos_until_old: Option<u32>,
    /// The next registrations fail.
    pub(crate) lose_registers: u32,
    /// Replaces the default.
    pub(crate) cluster: Option<ClusterId>,
    /// After this many messages, output is rejected.
    pub(crate) messages_until_rejected: Option<usize>,
    /// The next polls fail and lose their work.
    pub(crate) lose_polls: u32,
    /// The responses to the next reports are lost, with their work.
    pub(crate) lose_reports: u32,
    /// The next heartbeats fail; polls stay pending.
    pub(crate) lose_heartbeats: u32,
    /// All calls return `unavailable`.
    pub(crate) down: bool,
    /// All connects fail.
    pub(crate) unreachable: bool,
    /// Results are not accepted.
    pub(crate) deaf: bool,
    /// Output is not accepted.
    pub(crate) deaf_to_output: bool,
    /// Output calls time out.
    pub(crate) slow_for_output: bool,
    /// Reports with more results than this time out.
    pub(crate) slow_beyond: Option<usize>,
    /// Results in each report that timed out.
    pub(crate) timed_out: Vec<usize>,
    /// Bytes of text in each message of output.
    pub(crate) messages: Vec<usize>,
    /// Reports with one of these are rejected.
    pub(crate) reject: Vec<LeaseRef>,
    /// Reports with any output are rejected.
    pub(crate) reject_output: bool,
    /// Reports are refused as if the node were not known.
    pub(crate) forgetful: bool,
    /// Results of each report that was rejected.
    pub(crate) rejected: Vec<Vec<LeaseRef>>,
    pub(crate) end_with: Option<Fault>,
    /// The fault of hellos and registrations, and how often it was returned.
    pub(crate) refuse_joining: Option<Fault>,
    pub(crate) refused_joinings: u32,
    /// The fault of registrations; hellos succeed.
    pub(crate) refuse_registering: Option<Fault>,
    /// The fault of heartbeats until the node registers again.
    pub(crate) estranged: Option<Fault>,
    /// Polls are refused as if the node were not known: a server that is behind.
    pub(crate) behind: bool,
    pub(crate) connects: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) state: Mutex<State>,
    changed: Notify,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) lease_ttl: Duration,
    /// A release without `keeps_undelivered`.
    pub(crate) is_old: bool,
    /// Addresses without a server.
    pub(crate) dead: Vec<String>,
}

impl Server {
    pub(crate) fn new() -> Arc<Self> {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Self)) -> Arc<Self> {
        let mut server = Self {
            state: Mutex::default(),
            changed: Notify::new(),
            heartbeat_interval: Duration::from_millis(50),
            lease_ttl: Duration::from_secs(30),
            is_old: false,
            dead: Vec::new(),
        };
        change(&mut server);
        Arc::new(server)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_waiters();
    }

    pub(crate) fn give(&self, work: impl IntoIterator<Item = Assignment>) {
        self.change(|state| state.work.extend(work));
    }

    /// Waits until the state satisfies a condition; fails after a while.
    pub(crate) async fn until<T>(&self, what: &str, is: impl Fn(&State) -> Option<T>) -> T {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if let Some(found) = is(&self.state.lock().unwrap()) {
                    return found;
                }
                changed.await;
            }
        };
        match tokio::time::timeout(DEADLINE, wait).await {
            Ok(found) => found,
            Err(_) => panic!("never came true: {what}; state: {:#?}", self.state.lock().unwrap()),
        }
    }

    /// Returns the result of an execution.
    pub(crate) async fn result(&self, number: u128) -> Finished {
        self.until(&format!("result of {number}"), |state| {
            state.finished.iter().find(|finished| finished.held == held(number)).cloned()
        })
        .await
    }

    /// Returns all output of an execution, after its result arrived.
    pub(crate) async fn output_of(&self, number: u128) -> Vec<OutputChunk> {
        let finished = self.result(number).await;
        let state = self.state.lock().unwrap();
        let sent = state.chunks.iter().filter(|chunk| chunk.execution == finished.held.execution);
        sent.chain(&finished.output).cloned().collect()
    }

    fn joining(&self) -> Result<(), Fault> {
        let refused = self.state.lock().unwrap().refuse_joining.clone();
        let Some(fault) = refused else { return Ok(()) };
        self.change(|state| state.refused_joinings += 1);
        Err(fault)
    }

    fn fault(&self, state: &State) -> Option<Fault> {
        state.end_with.clone().or_else(|| state.down.then(|| Fault::Unavailable("down".to_owned())))
    }
}

#[async_trait]
impl Link for Server {
    async fn hello(&self, hello: Hello) -> Result<Welcome, Fault> {
        assert_eq!(hello.protocol, PROTOCOL);
        self.joining()?;
        let mut state = self.state.lock().unwrap();
        if state.down {
            return Err(Fault::Unavailable("down".to_owned()));
        }
        state.seen.push(Seen::Hello);
        let is_old = self.is_old || state.hellos_until_old == Some(0);
        state.hellos_until_old = state.hellos_until_old.map(|count| count.saturating_sub(1));
        Ok(Welcome {
            cluster: state.cluster.unwrap_or(ClusterId::DEFAULT),
            server_name: "fake".to_owned(),
            version: "0".to_owned(),
            heartbeat_interval: self.heartbeat_interval,
            lease_ttl: self.lease_ttl,
            output_max_bytes: 1024 * 1024,
            protocol: PROTOCOL,
            keeps_undelivered: !is_old,
        })
    }

    async fn register(&self, register: Register) -> Result<Registered, Fault> {
        self.joining()?;
        let refused = {
            let mut state = self.state.lock().unwrap();
            if state.lose_registers > 0 {
                state.lose_registers -= 1;
                return Err(Fault::Unavailable("no answer".to_owned()));
            }
            state.refuse_registering.clone().or_else(|| self.fault(&state))
        };
        if let Some(fault) = refused {
            return Err(fault);
        }
        self.change(|state| {
            state.seen.push(Seen::Register);
            state.registered.push(register);
            state.estranged = None;
        });
        Ok(Registered::default())
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer, Fault> {
        let mut state = self.state.lock().unwrap();
        if let Some(fault) = self.fault(&state) {
            return Err(fault);
        }
        if let Some(fault) = state.estranged.clone() {
            return Err(fault);
        }
        if state.lose_heartbeats > 0 {
            state.lose_heartbeats -= 1;
            return Err(Fault::Unavailable("no answer".to_owned()));
        }
        let refused = heartbeat.held.iter().filter(|held| state.refuse.contains(held)).copied().collect();
        let unheard = heartbeat.held.iter().filter(|held| state.unheard.contains(held)).copied().collect();
        state.heartbeats.push(heartbeat);
        drop(state);
        self.changed.notify_waiters();
        Ok(HeartbeatAnswer { refused, stop: Vec::new(), unheard })
    }

    async fn poll(&self, poll: Poll) -> Result<PollAnswer, Fault> {
        self.change(|state| state.polls.push(poll.clone()));
        let parked = async {
            loop {
                let changed = self.changed.notified();
                {
                    let mut state = self.state.lock().unwrap();
                    if let Some(fault) = self.fault(&state) {
                        return Err(fault);
                    }
                    if state.behind {
                        return Err(Fault::NotFound("node".to_owned()));
                    }
                    if !state.work.is_empty() || !state.stop.is_empty() {
                        let answer = PollAnswer {
                            assignments: std::mem::take(&mut state.work),
                            stop: std::mem::take(&mut state.stop),
                        };
                        if state.lose_polls > 0 {
                            state.lose_polls -= 1;
                            return Err(Fault::Unavailable("the answer was lost".to_owned()));
                        }
                        return Ok(answer);
                    }
                }
                changed.await;
            }
        };
        tokio::time::timeout(poll.wait, parked).await.unwrap_or_else(|_| Ok(PollAnswer::default()))
    }

    async fn report(&self, report: Report) -> Result<ReportAnswer, Fault> {
        let mut state = self.state.lock().unwrap();
        if let Some(fault) = self.fault(&state) {
            return Err(fault);
        }
        if state.deaf {
            return Err(Fault::Unavailable("deaf".to_owned()));
        }
        if state.forgetful {
            return Err(Fault::NotFound("node".to_owned()));
        }
        if state.slow_beyond.is_some_and(|most| report.finished.len() > most) {
            state.timed_out.push(report.finished.len());
            return Err(Fault::TimedOut("no answer in time".to_owned()));
        }
        let results: Vec<LeaseRef> = report.finished.iter().map(|one| one.held).collect();
        if results.iter().any(|held| state.reject.contains(held))
            || (state.reject_output && report.finished.iter().any(|one| !one.output.is_empty()))
        {
            state.rejected.push(results);
            drop(state);
            self.changed.notify_waiters();
            return Err(Fault::Rejected("it is too long".to_owned()));
        }
        let all = report.started.iter().map(|one| one.held).chain(report.finished.iter().map(|one| one.held));
        let receipts = all
            .map(|held| if state.refuse.contains(&held) { Receipt::Refused } else { Receipt::Recorded })
            .collect();
        state
            .seen
            .push(Seen::Report(report.finished.iter().map(|one| one.held.execution.0.as_u128()).collect()));
        state.started.extend(report.started.clone());
        state.finished.extend(report.finished.clone());
        state.reports.push(report);
        let assignments = std::mem::take(&mut state.work_for_report);
        let is_lost = state.lose_reports > 0;
        state.lose_reports = state.lose_reports.saturating_sub(1);
        drop(state);
        self.changed.notify_waiters();
        if is_lost {
            return Err(Fault::Unavailable("the response was lost".to_owned()));
        }
        Ok(ReportAnswer { receipts, assignments })
    }

    async fn output(&self, output: Output) -> Result<(), Fault> {
        let is_slow = {
            let mut state = self.state.lock().unwrap();
            if let Some(fault) = self.fault(&state) {
                return Err(fault);
            }
            if state.deaf_to_output {
                return Err(Fault::Unavailable("deaf".to_owned()));
            }
            if state.messages_until_rejected.is_some_and(|most| state.messages.len() >= most) {
                return Err(Fault::Rejected("it is too long".to_owned()));
            }
            state.messages.push(output.chunks.iter().map(|chunk| chunk.text.len()).sum());
            if !state.slow_for_output {
                state.speaking.extend(output.held);
                state.chunks.extend(output.chunks);
            }
            state.slow_for_output
        };
        self.changed.notify_waiters();
        if is_slow {
            // Heartbeats are answered in the meantime.
            tokio::time::sleep(self.heartbeat_interval * 2).await;
            if let Some(fault) = self.fault(&self.state.lock().unwrap()) {
                return Err(fault);
            }
            return Err(Fault::TimedOut("no answer in time".to_owned()));
        }
        Ok(())
    }
}

/// Reaches the fake server at any address but the dead ones.
#[derive(Debug)]
pub(crate) struct Dial(pub(crate) Arc<Server>);

#[async_trait]
impl Connector for Dial {
    async fn connect(&self, address: &str) -> Result<Arc<dyn Link>, Fault> {
        self.0.change(|state| state.connects.push(address.to_owned()));
        let is_unreachable = self.0.state.lock().unwrap().unreachable;
        if is_unreachable || self.0.dead.iter().any(|dead| dead == address) {
            return Err(Fault::Unavailable("nobody listens".to_owned()));
        }
        Ok(self.0.clone())
    }
}

pub(crate) fn settings(data: &Path) -> Settings {
    let mut settings = Settings::new(data.to_owned());
    settings.hostname = "node-1".to_owned();
    settings.slots = 4;
    settings.allow = vec!["exec".to_owned()];
    settings.grace = Duration::from_secs(1);
    settings.tuning.backoff_most = Duration::from_millis(200);
    settings.tuning.refused_least = Duration::from_millis(10);
    settings.tuning.refused_most = Duration::from_millis(50);
    settings
}

pub(crate) fn start(server: &Arc<Server>, data: &Path) -> Handle {
    Agent::start(settings(data), Arc::new(Dial(server.clone())))
}

pub(crate) fn held(number: u128) -> LeaseRef {
    LeaseRef {
        execution: ExecutionId(Uuid::from_u128(number)),
        token: LeaseToken(Uuid::from_u128(number << 64)),
    }
}

pub(crate) fn work(number: u128, backend: &str, action: &str, params: &Value) -> Assignment {
    let params: Params = params.as_object().unwrap().iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    Assignment {
        execution: held(number).execution,
        token: held(number).token,
        of: Origin::Step { run: RunId::from("run-1"), step: 0, item: None },
        attempt: 1,
        kind: WorkKind::Placed,
        backend: backend.to_owned(),
        action: action.to_owned(),
        params: Arc::new(params),
        timeout: Duration::from_secs(60),
        stop_on_disconnect: false,
        outputs: Vec::new(),
    }
}

/// Numbers that no two tests share: cgroups and markers of the host are named after them.
pub(crate) fn unique() -> u128 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let low = u64::from(NEXT.fetch_add(1, Ordering::Relaxed)) | (u64::from(std::process::id()) << 32);
    u128::from(low)
}

pub(crate) fn noop(number: u128) -> Assignment {
    work(number, "test", "noop", &json!({}))
}

pub(crate) fn sleep(number: u128, duration: &str) -> Assignment {
    work(number, "test", "sleep", &json!({ "duration": duration }))
}

pub(crate) fn shell(number: u128, script: &str) -> Assignment {
    work(number, "exec", "shell", &json!({ "command": script }))
}

pub(crate) fn text_of(chunks: &[OutputChunk]) -> String {
    chunks.iter().map(|chunk| chunk.text.as_str()).collect()
}

/// Returns the processes of the host that carry the mark of an execution, without zombies.
pub(crate) fn alive(number: u128) -> Vec<i32> {
    let marker = format!("DOWNBEAT_EXECUTION={}.1", held(number).execution);
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &i32| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == marker.as_bytes()))
    })
    .collect()
}

/// Polls for a condition on the host.
pub(crate) async fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !is() {
        assert!(tokio::time::Instant::now() < deadline, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The leases of the last heartbeat.
pub(crate) fn last_held(state: &State) -> HashSet<LeaseRef> {
    state.heartbeats.last().map(|beat| beat.held.iter().copied().collect()).unwrap_or_default()
}
