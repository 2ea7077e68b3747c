//! Reads the database under test: the size of its tables, their dead rows, and how long executions waited. No metric of
//! the product has these figures.

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::Client;

use super::figures::Latencies;
use super::server::cannot;
use crate::failure::Result;

const TABLES: &str = "SELECT relname::text, n_live_tup, n_dead_tup, pg_total_relation_size(relid), \
     autovacuum_count + autoanalyze_count FROM pg_stat_user_tables ORDER BY 4 DESC, 1";
const SIZE: &str = "SELECT pg_database_size(current_database())";
/// Waits in tenths of a millisecond, at most a minute: this bounds the number of rows.
const WAITS: &str = "SELECT (granted_at - $1) * $3 / ($2 - $1), \
     least(greatest(granted_at - created_at, 0), 60000000) / 100, count(*) \
     FROM executions WHERE granted_at >= $1 AND granted_at < $2 GROUP BY 1, 2";

/// One table at one time, from PostgreSQL's statistics.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TableState {
    pub name: String,
    pub rows: i64,
    pub dead_rows: i64,
    /// With its indexes.
    pub bytes: i64,
    pub autovacuums: i64,
}

/// All tables, the largest first.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Tables {
    pub database_bytes: i64,
    pub tables: Vec<TableState>,
}

impl Tables {
    pub(super) async fn read(client: &Client) -> Result<Self> {
        let failed = |error| cannot("read the tables' statistics", &error);
        let rows = client.query(TABLES, &[]).await.map_err(failed)?;
        let tables = rows.iter().map(|row| TableState {
            name: row.get(0),
            rows: row.get(1),
            dead_rows: row.get(2),
            bytes: row.get(3),
            autovacuums: row.get(4),
        });
        let tables = tables.collect();
        let database_bytes = client.query_one(SIZE, &[]).await.map_err(failed)?.get(0);
        Ok(Self { database_bytes, tables })
    }

    pub(super) fn dead_rows(&self) -> i64 {
        self.tables.iter().map(|table| table.dead_rows).sum()
    }
}

/// Returns the database's clock in microseconds, as times are stored.
pub(super) async fn now(client: &Client) -> Result<i64> {
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    Ok(client.query_one(sql, &[]).await.map_err(|error| cannot("ask for the time", &error))?.get(0))
}

pub(super) async fn count_runs(client: &Client) -> Result<i64> {
    let counted = client.query_one("SELECT count(*) FROM runs", &[]).await;
    Ok(counted.map_err(|error| cannot("count runs", &error))?.get(0))
}

/// Returns the waits from pending to leased, for each of this many parts of the time.
pub(super) async fn waits(client: &Client, from: i64, until: i64, windows: u32) -> Result<Vec<Latencies>> {
    let mut waits: Vec<Latencies> = (0..windows).map(|_| Latencies::default()).collect();
    let rows = client.query(WAITS, &[&from, &until, &i64::from(windows)]).await;
    for row in rows.map_err(|error| cannot("read how long executions waited", &error))? {
        let (window, tenths, count): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let wait = Duration::from_micros(u64::try_from(tenths).unwrap_or(0) * 100);
        if let Some(latencies) = usize::try_from(window).ok().and_then(|window| waits.get_mut(window)) {
            latencies.add_many(wait, u64::try_from(count).unwrap_or(0));
        }
    }
    Ok(waits)
}
