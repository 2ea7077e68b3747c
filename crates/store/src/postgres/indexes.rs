//! Owns the indexes that were added to tables with rows. Migrations create none: `CREATE INDEX` keeps writers out until
//! it has read the whole table, which may take hours.
//!
//! A small table is indexed before the store opens. A large one, or one that somebody keeps locked, is indexed with
//! `CREATE INDEX CONCURRENTLY`, one index at a time, while all servers serve, and lists that need the index are slow
//! until then. If the server that builds an index dies, PostgreSQL keeps the unfinished index as invalid; the next
//! server drops it and builds it again.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connect::{Purpose, Target};
use super::failure::Result;
use crate::port::Error;

/// An index, and its table with the indexed columns.
struct Index {
    name: &'static str,
    table: &'static str,
    columns: &'static str,
}

const INDEXES: &[Index] = &[
    Index { name: "runs_by_cluster", table: "runs", columns: "(cluster, created_at, id)" },
    Index { name: "runs_by_job", table: "runs", columns: "(job, created_at, id) WHERE job IS NOT NULL" },
    Index {
        name: "runs_by_end",
        table: "runs",
        columns: "(state, created_at, id) WHERE state IN (10, 11, 12)",
    },
    Index { name: "runs_incomplete", table: "runs", columns: "(id) WHERE steps IS NULL" },
    Index {
        name: "runs_uncounted",
        table: "runs",
        columns: "(finished_at, id) WHERE keeps IS NULL AND finished_at IS NOT NULL",
    },
    Index { name: "executions_unsuccessful", table: "executions", columns: "(run, id) WHERE status > 3" },
    Index { name: "limit_uses_at_once", table: "limit_uses", columns: "(execution) WHERE until IS NULL" },
    Index {
        name: "executions_ended",
        table: "executions",
        columns: "(run, status, step, id) WHERE status > 2",
    },
    Index {
        name: "executions_of_node",
        table: "executions",
        columns: "(coalesce(pinned, lease_node), id) WHERE coalesce(pinned, lease_node) IS NOT NULL",
    },
    Index {
        name: "executions_open_by_node",
        table: "executions",
        columns: "(lease_node, run, step, id) WHERE status <= 2",
    },
    Index {
        name: "executions_again",
        table: "executions",
        columns: "(run, step, pinned, item, attempt) WHERE attempt > 1",
    },
    Index {
        name: "executions_reused",
        table: "executions",
        columns: "(run, step, cache_key) WHERE reused IS NOT NULL",
    },
    Index {
        name: "definitions_by_definition",
        table: "definitions",
        columns: "(definition_hash) WHERE definition_hash IS NOT NULL",
    },
    Index {
        name: "definitions_by_resolved",
        table: "definitions",
        columns: "(resolved_hash) WHERE resolved_hash IS NOT NULL",
    },
    Index {
        name: "executions_standing",
        table: "executions",
        columns: "(run, step, pinned, attempt DESC, id) WHERE run >= 'standing:' AND run < 'standing;'",
    },
    Index {
        name: "executions_of_task",
        table: "executions",
        columns: "(run, step, id) WHERE run >= 'standing:' AND run < 'standing;'",
    },
    Index { name: "nodes_by_common", table: "nodes", columns: "(common_hash) WHERE common_hash IS NOT NULL" },
];

/// Indexes of older programs that one of [`INDEXES`] serves in place of. They are dropped after all of these are there.
const REPLACED: &[&str] = &["executions_open", "executions_by_node"];

/// The indexes by which pruning finds out whether a row refers to a content.
const OF_CONTENTS: [&str; 3] = ["definitions_by_definition", "definitions_by_resolved", "nodes_by_common"];

/// A table up to this size is indexed in well under a second.
const SMALL_BYTES: i64 = 64 * 1024 * 1024;
/// How long the store's opening waits for the writers of a small table.
const LOCK_WAIT: &str = "SET LOCAL lock_timeout = '500ms'";
/// The lock for building indexes: "downindx". It is never waited for inside of PostgreSQL: a waiting session has a
/// snapshot, which `CREATE INDEX CONCURRENTLY` would wait for in turn.
const LOCK: i64 = 0x646f_776e_696e_6478;
/// The pause between two attempts to get the lock.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two attempts to build the indexes: each may have read a whole table.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Returns the names of all indexes that this program builds; for tests.
#[cfg(feature = "conformance")]
pub(super) fn names() -> Vec<&'static str> {
    INDEXES.iter().map(|index| index.name).collect()
}

/// What PostgreSQL has of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// A build of it was interrupted, or is not finished.
    Invalid,
    Valid,
}

async fn find(client: &Client, name: &str) -> Result<Found> {
    let sql = "SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
               JOIN pg_namespace n ON n.oid = c.relnamespace \
               WHERE c.relname = $1 AND n.nspname = current_schema()";
    let row = client.query_opt(sql, &[&name]).await?;
    Ok(match row.map(|row| row.try_get(0)).transpose()? {
        None => Found::Nothing,
        Some(false) => Found::Invalid,
        Some(true) => Found::Valid,
    })
}

/// Returns whether the rows that refer to a content can be found by indexes.
pub(super) async fn are_contents_indexed(client: &Client) -> Result<bool> {
    for name in OF_CONTENTS {
        if find(client, name).await? != Found::Valid {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Indexes the small tables. Returns whether all indexes are there.
pub(super) async fn build_small(client: &mut Client) -> Result<bool> {
    let mut complete = true;
    for index in INDEXES {
        complete &= match find(client, index.name).await? {
            Found::Valid => true,
            Found::Invalid => false,
            Found::Nothing => match build_at_once(client, index).await {
                Err(failure) if failure.is_lock_timeout() => false,
                built => built?,
            },
        };
    }
    if !complete {
        return Ok(false);
    }
    match drop_at_once(client).await {
        Err(failure) if failure.is_lock_timeout() => Ok(false),
        dropped => dropped.map(|()| true),
    }
}

/// Drops the replaced indexes. It takes no time, but a lock.
async fn drop_at_once(client: &mut Client) -> Result<()> {
    let transaction = client.transaction().await?;
    for name in REPLACED {
        transaction.batch_execute(&format!("{LOCK_WAIT}; DROP INDEX IF EXISTS {name}")).await?;
    }
    Ok(transaction.commit().await?)
}

/// Indexes a small table, for which writers wait. Returns false if it is large, or if another server builds an index.
async fn build_at_once(client: &mut Client, index: &Index) -> Result<bool> {
    let transaction = client.transaction().await?;
    let sql = "SELECT pg_relation_size($1::text::regclass) <= $2 AND pg_try_advisory_xact_lock($3)";
    let may: bool = transaction.query_one(sql, &[&index.table, &SMALL_BYTES, &LOCK]).await?.try_get(0)?;
    if may {
        let Index { name, table, columns } = index;
        transaction
            .batch_execute(&format!("{LOCK_WAIT}; CREATE INDEX IF NOT EXISTS {name} ON {table} {columns}"))
            .await?;
    }
    transaction.commit().await?;
    Ok(may)
}

/// Builds the indexes that are not there, until all are or the returned guard is dropped.
pub(super) fn build_in_background(target: Target) -> DropGuard {
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        tracing::info!("indexes are being built in the background; lists that need them are slow until then");
        let mut failures = 0;
        while let Err(error) = build_all(&target, &stopped).await {
            let (error, pause) = (Error::from(error), pause_after(failures));
            failures += 1;
            tracing::warn!(%error, "an index could not be built; it is tried again in {} s", pause.as_secs());
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stopped.cancelled() => return,
            }
        }
    });
    stop.drop_guard()
}

/// Returns the pause after this many failures and one more: each is twice as long as the one before.
fn pause_after(failures: u32) -> Duration {
    PAUSE.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST_PAUSE)
}

async fn build_all(target: &Target, stopped: &CancellationToken) -> Result<()> {
    let client = target.connect(Purpose::Indexes).await?;
    let building = async {
        for index in INDEXES {
            build_beside_writers(&client, index).await?;
        }
        for name in REPLACED {
            client.batch_execute(&format!("DROP INDEX CONCURRENTLY IF EXISTS {name}")).await?;
        }
        tracing::info!("all indexes are there");
        Ok(())
    };
    tokio::select! {
        built = building => built,
        () = stopped.cancelled() => {
            // Otherwise PostgreSQL would go on with it.
            let _ = client.cancel_token().cancel_query(target.tls.clone()).await;
            Ok(())
        }
    }
}

/// Builds an index while others write. The lock ends with the connection, so that another server continues if this one
/// dies.
async fn build_beside_writers(client: &Client, index: &Index) -> Result<()> {
    let lock = "SELECT pg_try_advisory_lock($1)";
    while find(client, index.name).await? != Found::Valid {
        if !client.query_one(lock, &[&LOCK]).await?.try_get::<_, bool>(0)? {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        let Index { name, table, columns } = index;
        // Under the lock nobody builds it, so an invalid one is left over.
        let found = find(client, name).await?;
        if found == Found::Invalid {
            client.batch_execute(&format!("DROP INDEX CONCURRENTLY IF EXISTS {name}")).await?;
        }
        if found != Found::Valid {
            tracing::info!(index = name, "building an index");
            client.batch_execute(&format!("CREATE INDEX CONCURRENTLY {name} ON {table} {columns}")).await?;
        }
        client.execute("SELECT pg_advisory_unlock($1)", &[&LOCK]).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_some_minutes() {
        let pauses: Vec<u64> = [0, 1, 2, 8, 9, 40].map(|failures| pause_after(failures).as_secs()).into();
        assert_eq!(pauses, [1, 2, 4, 256, 300, 300]);
    }
}
