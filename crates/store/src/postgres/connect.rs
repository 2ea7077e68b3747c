//! Owns the connections to PostgreSQL, their settings, and running the migrations.

use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use downbeat_core::limits;
use tokio::runtime::Handle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row, Transaction};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::failure::{Failure, Result};
use super::tls;
use crate::migrate::{self, Ran};
use crate::port::Error;
use crate::rows::{Record, small};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of one unit of work. After it the connection is dropped: PostgreSQL hangs or is unreachable.
const WORK_TIMEOUT: Duration = Duration::from_secs(15);
/// PostgreSQL itself ends a statement a little earlier, so that none continues after its client has given up.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(14);
/// Rows that are read at once of a result that may have a million.
const PORTION: i32 = 5_000;
/// How soon a broken idle connection is detected.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Locks migrations against servers that start at the same time: "downbeat", cut to eight bytes.
const MIGRATION_LOCK: i64 = 0x646f_776e_6265_6174;
/// How long a migration waits for a lock. Later users of the table queue behind it, so waiting for a long transaction
/// would block all other servers.
const LOCK_WAIT: &str = "SET LOCAL lock_timeout = '500ms'";
const LOCK_PAUSE: Duration = Duration::from_millis(500);
/// The number of tries: for a minute.
const LOCK_TRIES: u32 = 60;
/// Forces index scans for the commits' statements. A plan made while the tables were small would scan them, and stays
/// until the next ANALYZE.
const BY_INDEX: &str = "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off \
                        -c plan_cache_mode=force_generic_plan -c jit=off";
/// Plans each query for its values: a statement of a list has all filters, and those that are set decide which index
/// serves it.
const BY_VALUES: &str = "-c plan_cache_mode=force_custom_plan";
const NO_JIT: &str = "-c jit=off";
/// A server that hangs or is cut off during a transaction keeps its locks no longer than this.
const TIMEOUTS: &str = "-c idle_in_transaction_session_timeout=5s -c lock_timeout=12s";

/// For the trigger that notes the changes of programs that keep no counts of instances.
const KEEPS_COUNTS: &str = "-c downbeat.counts=kept";

/// What a connection is for. Each purpose has its own connections, so that none waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Batches, one after the other.
    Commits,
    /// Heartbeats of servers and nodes, and the time: a server without them counts as gone.
    Vital,
    /// The journal's reads of new events.
    Feed,
    /// The server's other reads, and output.
    Work,
    /// Reads for users; see [`Store::views`](crate::Store::views).
    Views,
    /// Migrations, pruning, snapshots: a connection for each, which may take long and is closed at the end.
    Upkeep,
    /// Notifications between servers. Losing one does no harm, so sending one need not wait for the disk.
    Hints,
}

impl Purpose {
    fn connections(self) -> usize {
        match self {
            Purpose::Commits | Purpose::Feed | Purpose::Upkeep | Purpose::Hints => 1,
            Purpose::Vital => 2,
            Purpose::Work => 4,
            Purpose::Views => limits::VIEWS_AT_ONCE,
        }
    }

    /// Returns how long to wait for a free connection before the store counts as unavailable.
    fn wait_timeout(self) -> Duration {
        match self {
            Purpose::Views => Duration::from_secs(limits::VIEW_S),
            _ => 2 * WORK_TIMEOUT,
        }
    }

    /// Returns the settings of its sessions.
    fn settings(self) -> String {
        let within = |timeout: Duration| format!("{NO_JIT} -c statement_timeout={}", timeout.as_millis());
        match self {
            Purpose::Commits => BY_INDEX.to_owned(),
            Purpose::Vital | Purpose::Feed => within(STATEMENT_TIMEOUT),
            Purpose::Work => format!("{BY_VALUES} {}", within(STATEMENT_TIMEOUT)),
            Purpose::Views => format!("{BY_VALUES} {}", within(Duration::from_secs(limits::VIEW_S))),
            Purpose::Upkeep => NO_JIT.to_owned(),
            Purpose::Hints => "-c synchronous_commit=off".to_owned(),
        }
    }
}

/// The database's address, and how its connections are encrypted.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) config: Config,
    pub(crate) tls: MakeRustlsConnect,
}

pub(crate) fn target(location: &str) -> Result<Target, Error> {
    let (plain, encryption) = tls::split(location)?;
    let mut config: Config = plain.parse().map_err(|_| Error::BadLocation(location.to_owned()))?;
    let tls = tls::prepare(&mut config, &encryption)?;
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    config.keepalives_idle(KEEPALIVE).keepalives_interval(KEEPALIVE).keepalives_retries(3);
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(WORK_TIMEOUT);
    }
    if config.get_application_name().is_none() {
        config.application_name("downbeat");
    }
    Ok(Target { config, tls })
}

impl Target {
    /// Returns the configuration of a connection for this purpose.
    pub(crate) fn config_for(&self, purpose: Purpose) -> Config {
        let mut config = self.config.clone();
        let options = format!(
            "{} {} {TIMEOUTS} {KEEPS_COUNTS}",
            config.get_options().unwrap_or_default(),
            purpose.settings()
        );
        config.options(options.trim());
        config
    }

    /// Opens one connection. It is closed with the returned client.
    pub(crate) async fn connect(&self, purpose: Purpose) -> Result<Client> {
        let (client, connection) = self.config_for(purpose).connect(self.tls.clone()).await?;
        tokio::spawn(connection);
        Ok(client)
    }
}

/// Opens a connection for direct use of the database, encrypted as in the location.
pub async fn postgres_client(location: &str) -> Result<Client, Error> {
    let Target { config, tls } = target(location)?;
    let (client, connection) = config.connect(tls).await.map_err(Failure::from)?;
    // It ends with the client.
    tokio::spawn(connection);
    Ok(client)
}

fn pool(target: &Target, purpose: Purpose) -> Result<Pool, Error> {
    // Fast: only checks whether a connection is closed. One that broke unnoticed fails its next statement.
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = Manager::from_config(target.config_for(purpose), target.tls.clone(), recycling);
    Pool::builder(manager)
        .max_size(purpose.connections())
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(purpose.wait_timeout()))
        .create_timeout(Some(2 * CONNECT_TIMEOUT))
        .build()
        .map_err(|error| Error::Unavailable(format!("cannot set up connections to PostgreSQL: {error}")))
}

/// The connections for one purpose. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connections {
    pool: Pool,
    tls: MakeRustlsConnect,
}

impl Connections {
    pub(crate) fn new(target: &Target, purpose: Purpose) -> Result<Self, Error> {
        Ok(Self { pool: pool(target, purpose)?, tls: target.tls.clone() })
    }

    pub(crate) async fn get(&self) -> Result<Object> {
        Ok(self.pool.get().await?)
    }

    /// Runs a unit of work on a connection, with a timeout.
    pub(crate) async fn run<T>(&self, work: impl AsyncFnOnce(&mut Object) -> Result<T>) -> Result<T> {
        let mut borrowed = Borrowed { client: Some(self.get().await?), tls: &self.tls };
        let result = within(work(borrowed.client())).await;
        if !matches!(result, Err(Failure::Silent(_))) {
            borrowed.give_back();
        }
        result
    }

    pub(crate) async fn rows(&self, sql: &str, args: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        self.run(async |client: &mut Object| {
            let statement = client.prepare_cached(sql).await?;
            Ok(client.query(&statement, args).await?)
        })
        .await
    }

    /// Reads many rows. Each portion has its own timeout, so that any number of rows can be read.
    pub(crate) async fn records_in_portions<T: Record>(
        &self,
        sql: &str,
        args: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<T>> {
        let mut borrowed = Borrowed { client: Some(self.get().await?), tls: &self.tls };
        let read = async {
            let transaction = within(async { Ok(borrowed.client().transaction().await?) }).await?;
            let portal = within(async { Ok(transaction.bind(sql, args).await?) }).await?;
            let mut records = Vec::new();
            loop {
                let rows = within(async { Ok(transaction.query_portal(&portal, PORTION).await?) }).await?;
                for row in &rows {
                    records.push(T::from_row(row)?);
                }
                if rows.len() < PORTION as usize {
                    break;
                }
            }
            within(async { Ok(transaction.commit().await?) }).await?;
            Ok(records)
        };
        let result = read.await;
        if !matches!(result, Err(Failure::Silent(_))) {
            borrowed.give_back();
        }
        result
    }

    pub(crate) fn close(&self) {
        self.pool.close();
    }
}

/// A connection during its work. If the work does not end, because its caller is gone or has timed out, the connection
/// leaves the pool, so that a late response is not taken for the next one, and PostgreSQL cancels the statement.
struct Borrowed<'a> {
    client: Option<Object>,
    tls: &'a MakeRustlsConnect,
}

impl Borrowed<'_> {
    fn client(&mut self) -> &mut Object {
        self.client.as_mut().expect("it is there until it is given back")
    }

    fn give_back(mut self) {
        self.client = None;
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let (Some(client), Ok(runtime)) = (self.client.take(), Handle::try_current()) else { return };
        let client = Object::take(client);
        let (token, tls) = (client.cancel_token(), self.tls.clone());
        runtime.spawn(async move {
            // If it fails, PostgreSQL's own timeout ends the statement.
            let _ = tokio::time::timeout(CONNECT_TIMEOUT, token.cancel_query(tls)).await;
            drop(client);
        });
    }
}

/// Waits for a unit of work, with a timeout. After a timeout the caller must drop the connection.
pub(crate) async fn within<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    within_for(0, work).await
}

/// The same with a longer timeout for many rows: a thousand are written in far less than a second.
pub(crate) async fn within_for<T>(rows: usize, work: impl Future<Output = Result<T>>) -> Result<T> {
    let timeout = WORK_TIMEOUT + Duration::from_secs(rows as u64 / 1_000);
    tokio::time::timeout(timeout, work).await.unwrap_or(Err(Failure::Silent(timeout)))
}

/// Runs the missing migrations, each in its own transaction; servers that start together take turns.
pub(crate) async fn migrate(client: &mut Client) -> Result<()> {
    let mut tries = 0;
    loop {
        match run_next(client).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(failure) if failure.is_lock_timeout() => {
                tries += 1;
                if tries == LOCK_TRIES {
                    let why =
                        "a migration cannot get its lock; end long transactions on this database, then retry";
                    return Err(Error::Unavailable(why.to_owned()).into());
                }
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// Runs the first missing migration. Returns false if there is none.
async fn run_next(client: &mut Client) -> Result<bool> {
    let transaction = client.transaction().await?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
    transaction.batch_execute(LOCK_WAIT).await?;
    let missing = migrate::missing(migrate::POSTGRES, &ran(&transaction).await?)?;
    let Some(migration) = missing.first() else {
        transaction.commit().await?;
        return Ok(false);
    };
    transaction.batch_execute(migration.sql).await?;
    transaction
        .execute(
            "INSERT INTO migrations (number, checksum, works_since, program) VALUES ($1, $2, $3, $4)",
            &[
                &small(migration.number),
                &migration.checksum(),
                &small(migration.works_since),
                &migrate::PROGRAM,
            ],
        )
        .await?;
    transaction.commit().await?;
    Ok(true)
}

async fn ran(transaction: &Transaction<'_>) -> Result<Vec<Ran>> {
    // Programs without the rule for schema changes created the table without the last two columns.
    let known = "SELECT count(*) FROM information_schema.columns WHERE table_schema = current_schema() \
                 AND table_name = 'migrations' AND column_name IN ('works_since', 'program')";
    if transaction.query_one(known, &[]).await?.try_get::<_, i64>(0)? < 2 {
        transaction
            .batch_execute(
                "CREATE TABLE IF NOT EXISTS migrations (number integer PRIMARY KEY, checksum text NOT NULL); \
                 ALTER TABLE migrations ADD COLUMN IF NOT EXISTS works_since integer, \
                 ADD COLUMN IF NOT EXISTS program text",
            )
            .await?;
    }
    let sql = "SELECT number, checksum, works_since, program FROM migrations";
    let mut ran = Vec::new();
    for row in transaction.query(sql, &[]).await? {
        ran.push(Ran {
            number: number(row.try_get(0)?),
            checksum: row.try_get(1)?,
            works_since: row.try_get::<_, Option<i32>>(2)?.map(number),
            program: row.try_get(3)?,
        });
    }
    Ok(ran)
}

/// A stored number that is not a `u32` counts as newer than all known ones.
fn number(stored: i32) -> u32 {
    u32::try_from(stored).unwrap_or(u32::MAX)
}
