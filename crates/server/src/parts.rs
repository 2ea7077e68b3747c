//! Owns [`Parts`]: the parts of one server that its modules share.

use std::sync::Arc;

use downbeat_core::ids::ServerId;
use downbeat_store::{ServerRecord, Store};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::admission::Admission;
use crate::clock::Clock;
use crate::cluster::{CommonLevel, LastSign};
use crate::counted::Counted;
use crate::deliveries::{Deliveries, Mailer};
use crate::dispatch::Dispatcher;
use crate::heavy::HeavyWork;
use crate::hook_rates::HookRates;
use crate::jobs::{Backfills, Jobs};
use crate::journal::{Feed, Journal};
use crate::metrics::Metrics;
use crate::nodes::{Heartbeats, Serving};
use crate::outbound::Outbound;
use crate::output::Outputs;
use crate::replica::Following;
use crate::runs::Runs;
use crate::settings::Settings;
use crate::standing::Standing;
use crate::stats::Stats;
use crate::surroundings::Chance;
use crate::vital::Vital;
use crate::volume::Measured;

#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub store: Arc<dyn Store>,
    /// The same store for the reads of users, which must not delay the server's own.
    pub views: Arc<dyn Store>,
    pub journal: Journal,
    pub feed: Feed,
    pub dispatcher: Dispatcher,
    pub admission: Admission,
    pub stats: Stats,
    pub runs: Runs,
    pub standing: Standing,
    pub jobs: Jobs,
    pub backfills: Backfills,
    pub hook_rates: HookRates,
    pub heartbeats: Heartbeats,
    pub serving: Serving,
    pub outputs: Outputs,
    pub outbound: Outbound,
    pub mailer: Mailer,
    pub deliveries: Deliveries,
    pub metrics: Metrics,
    pub settings: Arc<Settings>,
    pub server: ServerId,
    /// This server as an entry in the list of servers, as of its start.
    pub itself: Arc<ServerRecord>,
    pub clock: Clock,
    pub chance: Chance,
    pub last_sign: LastSign,
    pub level: CommonLevel,
    /// Limits the plans and job files that are processed at the same time.
    pub heavy: HeavyWork,
    /// Limits the views of large runs that are made at the same time.
    pub large_views: HeavyWork,
    /// Limits the snapshots that are sent to replicas at the same time.
    pub snapshots: Arc<Semaphore>,
    pub counted: Counted,
    /// How much the store held in the last day.
    pub measured: Measured,
    pub vital: Vital,
    /// A replica's knowledge of its primary; `None` on a primary.
    pub replica: Option<Following>,
    /// Cancelled when the server refuses new requests and ends its streams.
    pub closing: CancellationToken,
    /// Names this server in its log lines.
    pub span: Span,
}
