//! Owns the network between agents and servers. Each direction has its own delays, losses and partitions; a call may
//! arrive twice or late, and its response may be lost after the call took effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use downbeat_agent::Connector;
use downbeat_proto::message::{
    Fault, Finished, Heartbeat, HeartbeatAnswer, Hello, Output, OutputChunk, Poll, PollAnswer, Receipt,
    Register, Registered, Report, ReportAnswer, Welcome,
};
use downbeat_proto::{Link, deadline, poll_deadline};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::gate::Gate;
use crate::truth::Recorded;
use crate::world::{HostId, World};

/// The same as the real client's.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server needs to notice that a caller is gone if the hang-up does not arrive.
const KEEPALIVE: Duration = Duration::from_secs(40);

/// The current faults of the whole network.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NetworkFaults {
    /// The longest usual delay of one direction.
    pub(crate) delay: Duration,
    /// The share of calls that are delayed for long, in a thousand: others overtake them.
    pub(crate) late_permille: u64,
    pub(crate) lost_permille: u64,
    pub(crate) doubled_permille: u64,
    /// The bandwidth of a connection; none means unlimited.
    pub(crate) bytes_per_second: Option<u64>,
}

/// The size of a call or a response without a long field.
const SHORT_BYTES: usize = 256;

#[derive(Debug, Default)]
struct State {
    weather: NetworkFaults,
    /// Directions in which nothing arrives.
    blocked: BTreeSet<(HostId, HostId)>,
    /// Agents whose reports never arrive. All their other calls do.
    mute: BTreeSet<HostId>,
    listening: BTreeMap<HostId, (Arc<dyn Link>, Gate)>,
}

#[derive(Debug)]
pub(crate) struct Network {
    world: Arc<World>,
    state: Mutex<State>,
}

impl Network {
    pub(crate) fn new(world: Arc<World>) -> Arc<Self> {
        Arc::new(Self { world, state: Mutex::default() })
    }

    fn state<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_weather(&self, weather: NetworkFaults) {
        self.state(|state| state.weather = weather);
    }

    pub(crate) fn block(&self, from: HostId, to: HostId) {
        self.state(|state| state.blocked.insert((from, to)));
    }

    pub(crate) fn unblock(&self, from: HostId, to: HostId) {
        self.state(|state| state.blocked.remove(&(from, to)));
    }

    pub(crate) fn unblock_all(&self) {
        self.state(|state| state.blocked.clear());
    }

    pub(crate) fn mute(&self, host: HostId) {
        self.state(|state| state.mute.insert(host));
    }

    pub(crate) fn unmute(&self, host: HostId) {
        self.state(|state| state.mute.remove(&host));
    }

    pub(crate) fn listen(&self, host: HostId, link: Arc<dyn Link>, gate: Gate) {
        self.state(|state| state.listening.insert(host, (link, gate)));
    }

    pub(crate) fn hang_up(&self, host: HostId) {
        self.state(|state| state.listening.remove(&host));
    }

    fn listener(&self, host: HostId) -> Option<(Arc<dyn Link>, Gate)> {
        self.state(|state| state.listening.get(&host).cloned())
    }

    /// Delivers in one direction; returns false if the message is lost.
    async fn travel(&self, from: HostId, to: HostId, bytes: usize) -> bool {
        let weather = self.state(|state| state.weather);
        let mut delay = Duration::from_micros(200) + self.world.up_to(weather.delay);
        if self.world.happens(weather.late_permille) {
            delay += self.world.up_to(Duration::from_secs(20));
        }
        if let Some(bytes_per_second) = weather.bytes_per_second {
            delay += Duration::from_micros(bytes as u64 * 1_000_000 / bytes_per_second);
        }
        let lost = self.world.happens(weather.lost_permille);
        tokio::time::sleep(delay).await;
        let arrives = !lost && !self.state(|state| state.blocked.contains(&(from, to)));
        if !arrives {
            self.world.truth(|truth| truth.counts.calls_lost += 1);
        }
        arrives
    }
}

/// Connects one agent to servers.
#[derive(Debug)]
pub(crate) struct Dial {
    pub(crate) network: Arc<Network>,
    pub(crate) from: HostId,
    pub(crate) gate: Gate,
}

/// Returns a host's address, which is its name.
pub(crate) fn address(host: HostId) -> String {
    host.to_string()
}

fn host_of(address: &str) -> HostId {
    let number = address.trim_start_matches('s').parse().expect("addresses come from `address`");
    HostId::Server(number)
}

#[async_trait]
impl Connector for Dial {
    async fn connect(&self, address: &str) -> Result<Arc<dyn Link>, Fault> {
        self.gate.pass().await;
        let to = host_of(address);
        let handshake = async {
            let there = self.network.travel(self.from, to, SHORT_BYTES).await;
            let listens = self.network.listener(to).is_some();
            if !(there && self.network.travel(to, self.from, SHORT_BYTES).await) {
                std::future::pending::<()>().await;
            }
            listens
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, handshake).await {
            Ok(true) => Ok(Arc::new(Wire {
                network: self.network.clone(),
                from: self.from,
                to,
                gate: self.gate.clone(),
            })),
            Ok(false) => Err(Fault::Unavailable("connection refused".to_owned())),
            Err(_) => Err(Fault::Unavailable("connecting timed out".to_owned())),
        }
    }
}

/// An agent's link. A call goes to the session that runs on the server when the call arrives.
#[derive(Clone, Debug)]
struct Wire {
    network: Arc<Network>,
    from: HostId,
    to: HostId,
    gate: Gate,
}

/// Notifies the server that the caller is gone: as soon as that can arrive, or when its connection times out.
struct HangUp {
    wire: Wire,
    gone: CancellationToken,
}

impl Drop for HangUp {
    fn drop(&mut self) {
        if self.gone.is_cancelled() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let (wire, gone) = (self.wire.clone(), self.gone.clone());
        tokio::spawn(async move {
            if !wire.network.travel(wire.from, wire.to, SHORT_BYTES).await {
                tokio::time::sleep(KEEPALIVE).await;
            }
            gone.cancel();
        });
    }
}

impl Wire {
    /// Makes one call. Its copies are delivered independently; the first response counts.
    async fn call<Q, A, F>(
        &self,
        (name, bytes): (&'static str, usize),
        deadline: Duration,
        request: Q,
        serve: impl Fn(Arc<dyn Link>, Q) -> F + Clone + Send + 'static,
    ) -> Result<A, Fault>
    where
        Q: Clone + Send + 'static,
        A: Send + 'static,
        F: Future<Output = Result<A, Fault>> + Send + 'static,
    {
        self.gate.pass().await;
        let world = &self.network.world;
        let (answers, mut answered) = mpsc::unbounded_channel();
        let gone = CancellationToken::new();
        let hang_up = HangUp { wire: self.clone(), gone: gone.clone() };
        let weather = self.network.state(|state| state.weather);
        let copies = if world.happens(weather.doubled_permille) { 2 } else { 1 };
        world.truth(|truth| {
            truth.counts.calls += 1;
            truth.counts.calls_doubled += copies - 1;
        });
        for _ in 0..copies {
            let (wire, request, serve) = (self.clone(), request.clone(), serve.clone());
            let (answers, gone) = (answers.clone(), gone.clone());
            tokio::spawn(async move {
                if let Some(answer) = wire.deliver((name, bytes), request, serve, gone).await {
                    let _ = answers.send(answer);
                }
            });
        }
        drop(answers);
        let answer = tokio::time::timeout(deadline, async {
            match answered.recv().await {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        });
        let answer = answer.await.unwrap_or_else(|_| Err(Fault::TimedOut("no response in time".to_owned())));
        if answer.is_ok() {
            // The other copy, if there is one, cannot be recalled.
            hang_up.gone.cancel();
        }
        self.gate.pass().await;
        answer
    }

    async fn deliver<Q, A, F>(
        &self,
        (name, bytes): (&'static str, usize),
        request: Q,
        serve: impl Fn(Arc<dyn Link>, Q) -> F,
        gone: CancellationToken,
    ) -> Option<Result<A, Fault>>
    where
        F: Future<Output = Result<A, Fault>>,
    {
        let (network, from, to) = (&self.network, self.from, self.to);
        if !network.travel(from, to, bytes).await {
            network.world.log(format_args!("{from} → {to} {name} is lost"));
            return None;
        }
        let answer = match network.listener(to) {
            None => Err(Fault::Unavailable("connection refused".to_owned())),
            Some((link, gate)) => {
                let is_copy = gone.is_cancelled();
                let served = serve(link, request);
                let served = async {
                    gate.pass().await;
                    let answer = served.await;
                    gate.pass().await;
                    answer
                };
                tokio::select! {
                    biased;
                    () = gate.closed() => Err(Fault::Unavailable("the connection broke".to_owned())),
                    () = gone.cancelled(), if !is_copy => return None,
                    answer = served => answer,
                }
            }
        };
        let outcome = match &answer {
            Ok(_) => "ok".to_owned(),
            Err(fault) => fault.to_string(),
        };
        network.world.log(format_args!("{from} → {to} {name}: {outcome}"));
        if !network.travel(to, from, SHORT_BYTES).await {
            network.world.log(format_args!("{from} ← {to} {name} is lost"));
            return None;
        }
        Some(answer)
    }
}

fn output_bytes(chunks: &[OutputChunk]) -> usize {
    chunks.iter().map(|chunk| chunk.text.len()).sum()
}

#[async_trait]
impl Link for Wire {
    async fn hello(&self, hello: Hello) -> Result<Welcome, Fault> {
        let serve = |link: Arc<dyn Link>, hello| async move { link.hello(hello).await };
        self.call(("hello", SHORT_BYTES), deadline(SHORT_BYTES), hello, serve).await
    }

    async fn register(&self, register: Register) -> Result<Registered, Fault> {
        let world = self.network.world.clone();
        let serve = move |link: Arc<dyn Link>, register: Register| {
            let now = world.now();
            world.truth(|truth| truth.arrivals.entry(register.session).or_insert(now).to_owned());
            async move { link.register(register).await }
        };
        self.call(("register", SHORT_BYTES), deadline(SHORT_BYTES), register, serve).await
    }

    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatAnswer, Fault> {
        let serve = |link: Arc<dyn Link>, heartbeat| async move { link.heartbeat(heartbeat).await };
        self.call(("heartbeat", SHORT_BYTES), deadline(SHORT_BYTES), heartbeat, serve).await
    }

    async fn poll(&self, poll: Poll) -> Result<PollAnswer, Fault> {
        let deadline = poll_deadline(poll.wait);
        let serve = |link: Arc<dyn Link>, poll| async move { link.poll(poll).await };
        self.call(("poll", SHORT_BYTES), deadline, poll, serve).await
    }

    async fn report(&self, report: Report) -> Result<ReportAnswer, Fault> {
        let serve = |link: Arc<dyn Link>, report| async move { link.report(report).await };
        let facts = report.started.len() + report.finished.len();
        let output = report.finished.iter().map(|finished| output_bytes(&finished.output)).sum::<usize>();
        let bytes = SHORT_BYTES * (1 + facts) + output;
        if self.network.state(|state| state.mute.contains(&self.from)) {
            tokio::time::sleep(deadline(bytes)).await;
            return Err(Fault::TimedOut("no response in time".to_owned()));
        }
        let answer = self.call(("report", bytes), deadline(bytes), report.clone(), serve).await?;
        let receipts = answer.receipts.iter().skip(report.started.len());
        for (finished, receipt) in report.finished.into_iter().zip(receipts) {
            if *receipt == Receipt::Recorded {
                let Finished { held, outcome, .. } = finished;
                let receipt = Recorded { held, outcome, at: self.network.world.now() };
                self.network.world.truth(|truth| truth.receipts.push(receipt));
            }
        }
        Ok(answer)
    }

    async fn output(&self, output: Output) -> Result<(), Fault> {
        let serve = |link: Arc<dyn Link>, output| async move { link.output(output).await };
        let bytes = SHORT_BYTES + output_bytes(&output.chunks);
        self.call(("output", bytes), deadline(bytes), output, serve).await
    }
}
