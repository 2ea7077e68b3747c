//! Owns the connections to PostgreSQL, their settings, and the migrations.

use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use tokio_postgres::{Client, Config, NoTls};

use super::failure::Failure;
use crate::migrate;
use crate::port::Error;

/// How long a server is waited for.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a query waits for a free connection before the store counts as unavailable.
const WAIT: Duration = Duration::from_secs(30);
/// Any one piece of work is answered within this, or the connection is given up: its server is frozen or out of reach.
const ANSWER: Duration = Duration::from_secs(15);
/// How soon a connection on which nothing is said is found to be broken.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Locks migrations against servers that start at the same moment: "downbeat", cut to eight bytes.
const MIGRATION_LOCK: i64 = 0x646f_776e_6265_6174;
/// The commits' statements find their rows by index, always. A plan that was made while the tables were small would
/// read them whole, and stays until the next ANALYZE.
const BY_INDEX: &str = "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off \
                        -c plan_cache_mode=force_generic_plan -c jit=off";
const ALIKE: &str = "-c jit=off";
/// A server that was frozen or cut off in the middle of a transaction keeps its locks no longer than this.
const LET_GO: &str = "-c idle_in_transaction_session_timeout=5s -c lock_timeout=12s";

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Commits,
    Queries,
}

pub(crate) fn config(location: &str) -> Result<Config, Error> {
    let mut config: Config = location.parse().map_err(|_| Error::BadLocation(location.to_owned()))?;
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT);
    }
    config.keepalives_idle(KEEPALIVE).keepalives_interval(KEEPALIVE).keepalives_retries(3);
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(ANSWER);
    }
    if config.get_application_name().is_none() {
        config.application_name("downbeat");
    }
    Ok(config)
}

pub(crate) fn pool(config: &Config, purpose: Use, size: usize) -> Result<Pool, Error> {
    let mut config = config.clone();
    let settings = if purpose == Use::Commits { BY_INDEX } else { ALIKE };
    let options = format!("{} {settings} {LET_GO}", config.get_options().unwrap_or_default());
    config.options(options.trim());
    // Fast: a connection is only asked whether it is closed. One that died unseen fails its next statement.
    let manager =
        Manager::from_config(config, NoTls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
    Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(WAIT))
        .create_timeout(Some(2 * CONNECT))
        .build()
        .map_err(|error| Error::Unavailable(format!("cannot set up connections to PostgreSQL: {error}")))
}

/// Waits for a piece of work, but not for ever. Whoever hears of the silence throws the connection away.
pub(crate) async fn within<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::time::timeout(ANSWER, work).await.unwrap_or(Err(Failure::Silent(ANSWER)))
}

/// Waits for a piece of work on a connection, but not for ever. A connection that did not answer is thrown away: what
/// was asked on it may still be answered, and must not be taken for the answer to something else.
pub(crate) async fn answered<T>(
    client: Object,
    work: impl AsyncFnOnce(&mut Object) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut client = client;
    let result = within(work(&mut client)).await;
    if matches!(result, Err(Failure::Silent(_))) {
        drop(Object::take(client));
    }
    result
}

/// Runs what is missing, each migration in its own transaction; servers that start together take turns.
pub(crate) async fn migrate(client: &mut Client) -> Result<(), Failure> {
    loop {
        let transaction = client.transaction().await?;
        transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
        transaction
            .batch_execute(
                "CREATE TABLE IF NOT EXISTS migrations (number integer PRIMARY KEY, checksum text NOT NULL)",
            )
            .await?;
        let mut ran = Vec::new();
        for row in transaction.query("SELECT number, checksum FROM migrations", &[]).await? {
            let number: i32 = row.try_get(0)?;
            ran.push((u32::try_from(number).unwrap_or(u32::MAX), row.try_get(1)?));
        }
        let missing = migrate::missing(migrate::POSTGRES, &ran)?;
        let Some(migration) = missing.first() else {
            return Ok(transaction.commit().await?);
        };
        transaction.batch_execute(migration.sql).await?;
        let number = i32::try_from(migration.number).expect("migrations are few");
        transaction
            .execute(
                "INSERT INTO migrations (number, checksum) VALUES ($1, $2)",
                &[&number, &migration.checksum()],
            )
            .await?;
        transaction.commit().await?;
    }
}
