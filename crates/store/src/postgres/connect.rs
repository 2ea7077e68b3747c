//! Owns the connections to PostgreSQL, their settings, and running the migrations.

use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use tokio_postgres::{Client, Config, Transaction};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::failure::{Failure, Result};
use super::tls;
use crate::migrate::{self, Ran};
use crate::port::Error;
use crate::rows::small;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a query waits for a free connection before the store counts as unavailable.
const POOL_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of one unit of work. After it the connection is dropped: PostgreSQL hangs or is unreachable.
const WORK_TIMEOUT: Duration = Duration::from_secs(15);
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Commits,
    Queries,
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

/// Opens a connection for direct use of the database, encrypted as in the location.
pub async fn postgres_client(location: &str) -> Result<Client, Error> {
    let Target { config, tls } = target(location)?;
    let (client, connection) = config.connect(tls).await.map_err(Failure::from)?;
    // It ends with the client.
    tokio::spawn(connection);
    Ok(client)
}

pub(crate) fn pool(target: &Target, purpose: Purpose, size: usize) -> Result<Pool, Error> {
    let Target { mut config, tls } = target.clone();
    let settings = match purpose {
        Purpose::Commits => BY_INDEX.to_owned(),
        Purpose::Queries => format!("{BY_VALUES} {NO_JIT}"),
    };
    let options = format!("{} {settings} {TIMEOUTS}", config.get_options().unwrap_or_default());
    config.options(options.trim());
    // Fast: only checks whether a connection is closed. One that broke unnoticed fails its next statement.
    let manager =
        Manager::from_config(config, tls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
    Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(POOL_TIMEOUT))
        .create_timeout(Some(2 * CONNECT_TIMEOUT))
        .build()
        .map_err(|error| Error::Unavailable(format!("cannot set up connections to PostgreSQL: {error}")))
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

/// Runs a unit of work on a connection. After a timeout it drops the connection: a late response must not be taken for
/// the response to the next statement.
pub(crate) async fn run_work<T>(pool: &Pool, work: impl AsyncFnOnce(&mut Object) -> Result<T>) -> Result<T> {
    let mut client = pool.get().await?;
    let result = within(work(&mut client)).await;
    if matches!(result, Err(Failure::Silent(_))) {
        drop(Object::take(client));
    }
    result
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
