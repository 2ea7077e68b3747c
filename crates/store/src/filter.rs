//! Owns the SQL text that both dialects share: counts, conditions, and the writes that follow from the columns of a row.

use downbeat_core::change::{Change, Event};
use downbeat_core::ids::ClusterId;
use downbeat_core::{Portion, limits};

use crate::rows::{Text, Value, condition};

/// Open rows are counted by their index; ended rows were counted when they ended.
pub(crate) const OPEN_EXECUTIONS: &str = concat!(
    "SELECT status, count(*) FROM executions WHERE ",
    condition!(open executions),
    " GROUP BY status"
);
/// Standing runs are not counted: all of them are scheduled, and found by their ids.
pub(crate) const OPEN_RUNS: &str = concat!(
    "SELECT state, CAST(sum(total) AS bigint) FROM (SELECT state, count(*) AS total FROM runs WHERE state ",
    condition!(open runs),
    " GROUP BY state UNION ALL SELECT CAST(0 AS smallint), -count(*) FROM runs r \
     WHERE r.id >= 'standing:' AND r.id < 'standing;') open GROUP BY state HAVING sum(total) > 0"
);
/// The debug commands with the job `$1`, by state. They are few, and not counted as runs.
pub(crate) const DEBUG_RUNS: &str = concat!(
    "SELECT r.state, count(*) FROM runs r WHERE r.job = $1 AND ",
    condition!(debug run),
    " GROUP BY r.state"
);
pub(crate) const NODE_COUNTS: &str = "SELECT status, count(*) FROM presence GROUP BY status ORDER BY status";
/// Counts the latest executions of a node. Excludes reused results: nothing was executed for them.
pub(crate) const NODE_TOTALS: &str = "SELECT status, count(*), max(granted_at), max(finished_at) \
     FROM (SELECT status, granted_at, finished_at, reused FROM executions \
     WHERE coalesce(pinned, lease_node) = $1 ORDER BY id DESC LIMIT $2) latest \
     WHERE reused IS NULL GROUP BY status ORDER BY status";

/// Declares texts and statements that are built once, when they are first used.
macro_rules! lazy {
    ($($(#[$doc:meta])* $vis:vis $name:ident: $type:ty = $value:expr;)+) => {
        $($(#[$doc])* $vis static $name: std::sync::LazyLock<$type> = std::sync::LazyLock::new(|| $value);)+
    };
}
pub(crate) use lazy;

/// Declares the writes of a commit whose texts differ only in the dialect's own `Write`.
macro_rules! writes {
    () => {
        $crate::filter::lazy! {
            ADD_CONTENTS: Write = Write::insert::<$crate::rows::ContentRow<'_>>("contents")
                .then(" ON CONFLICT (hash) DO NOTHING");
            RENAME_CLUSTERS: Write = Write::update::<$crate::rows::ClusterNameRow<'_>>("clusters", |_| true);
            PUT_CLUSTERS: Write = Write::upsert::<$crate::rows::ClusterRow<'_>>("clusters");
            DELETE_CLUSTERS: Write =
                Write::update::<$crate::rows::DeletedClusterRow<'_>>("clusters", |_| true);
            PUT_NODES: Write = Write::upsert::<$crate::rows::DescribedRow<'_>>("nodes");
            PUT_PRESENCE: Write = Write::upsert::<$crate::rows::NodeLiveRow>("presence");
            UPDATE_NODES: Write = Write::update::<$crate::rows::NodeLiveRow>("presence", |column| {
                ["status", "draining"].contains(&column)
            });
            SET_PROBLEMS: Write = Write::update::<$crate::rows::ProblemsRow<'_>>("nodes", |_| true);
            pub(super) PUT_JOBS: Write = Write::upsert::<$crate::rows::JobRow<'_>>("jobs");
            pub(super) INSERT_JOB_VERSIONS: Write = Write::insert::<$crate::rows::JobVersionRow<'_>>("job_versions");
            pub(super) PUT_BACKFILLS: Write = Write::upsert::<$crate::rows::BackfillRow<'_>>("backfills");
            pub(super) PUT_DELIVERIES: Write = Write::upsert::<$crate::rows::DeliveryRow<'_>>("deliveries");
            CREATE_RUNS: Write = Write::insert::<$crate::rows::RunRow<'_>>("runs");
            DEFINE_RUNS: Write = Write::insert::<$crate::rows::DefinedRow<'_>>("definitions");
            UPDATE_RUNS: Write = Write::update::<$crate::rows::RunLiveRow<'_>>("runs", |_| true);
            INSERT_EXECUTIONS: Write = Write::insert::<$crate::rows::ExecutionRow<'_>>("executions");
            UPDATE_EXECUTIONS: Write = Write::update::<$crate::rows::StateColumns<'_>>("executions", |_| true);
            FAIL_EXECUTIONS: Write = Write::update::<$crate::rows::FailedRow<'_>>("executions", |_| true);
            PUT_HOLDS: Write = Write::upsert::<$crate::rows::HoldRow<'_>>("holds");
            INSERT_USES: Write = Write::insert::<$crate::rows::LimitUseRow<'_>>("limit_uses");
        }
    };
}
pub(crate) use writes;

/// An argument of a statement.
pub(crate) type Arg = Box<dyn Value>;

pub(crate) fn arg(value: impl Value + 'static) -> Arg {
    Box::new(value)
}

pub(crate) fn text(text: &str) -> Arg {
    arg(Text::from(text.to_owned()))
}

/// Executions that have a lease. The upper bound allows the index of open executions.
pub(crate) const HELD: &str = condition!(held executions);

/// The clusters that differ from the cluster `default` of a new store.
pub(crate) const CHANGED_CLUSTER: &str = "(created_at <> 0 OR version > 1)";

/// The nodes that exclusive runs hold. Rows of an ended run do not count.
pub(crate) const HOLDS: &str = concat!(
    " WHERE EXISTS (SELECT 1 FROM runs r WHERE r.id = h.run AND r.state ",
    condition!(open runs),
    ")"
);

/// The uses of limits. A use of an `AtOnce` limit counts while its execution has its lease.
pub(crate) const USES: &str = concat!(
    " WHERE l.until IS NOT NULL OR EXISTS (SELECT 1 FROM executions e WHERE e.id = l.execution AND e.status ",
    condition!(leased executions),
    ") ORDER BY l.cluster, l.key, l.granted_at, l.execution"
);

/// Counts the uses of an `AtOnce` limit.
pub(crate) const COUNT_AT_ONCE: &str = concat!(
    "SELECT count(*) FROM limit_uses l JOIN executions e ON e.id = l.execution \
     WHERE l.until IS NULL AND e.status ",
    condition!(leased executions)
);

/// Removes uses that no longer count: an older program ended their executions.
pub(crate) const REMOVE_STALE_USES: &str = concat!(
    "DELETE FROM limit_uses WHERE until IS NULL AND NOT EXISTS \
     (SELECT 1 FROM executions e WHERE e.id = limit_uses.execution AND e.status ",
    condition!(leased executions),
    ")"
);

/// Selects runs after `$1` whose row an older program wrote, each with the size of the texts that complete the row.
pub(crate) const INCOMPLETE_RUNS: &str = "SELECT r.id, octet_length(d.definition) + octet_length(d.resolved) \
     FROM runs r JOIN definitions d ON d.run = r.id WHERE r.steps IS NULL AND r.id > $1 ORDER BY r.id LIMIT $2";
/// How many rows are completed in one transaction.
pub(crate) const COMPLETED: Portion = Portion::new(limits::RUNS_COMPLETED, limits::RUNS_COMPLETED_BYTES);
/// The condition that no row refers to a content. With LIMIT each is a lookup by an index, where PostgreSQL would read the
/// whole index for EXISTS.
pub(crate) const UNUSED_CONTENT: &str = "(SELECT 1 FROM definitions d WHERE d.definition_hash = contents.hash LIMIT 1) IS NULL \
     AND (SELECT 1 FROM definitions d WHERE d.resolved_hash = contents.hash LIMIT 1) IS NULL \
     AND (SELECT 1 FROM nodes n WHERE n.common_hash = contents.hash LIMIT 1) IS NULL";
/// Selects released contents after `$1`, at most `$2`: each release, its content and the size of it. Some have megabytes.
pub(crate) const RELEASED_CONTENTS: &str = "SELECT r.id, r.hash, CAST(coalesce(octet_length(c.text), 0) AS bigint) \
     FROM contents_released r LEFT JOIN contents c ON c.hash = r.hash WHERE r.id > $1 ORDER BY r.id LIMIT $2";
/// The bytes of the parts of an execution that may be large. Neither database reads the texts for it.
pub(crate) const EXECUTION_BYTES: &str = "CAST(coalesce(octet_length(e.params), 0) + \
     coalesce(octet_length(e.outputs), 0) + coalesce(octet_length(e.error), 0) AS bigint)";
/// The bytes of a run's definition, as far as no content has them.
pub(crate) const RUN_BYTES: &str = "CAST(octet_length(d.definition) + octet_length(d.resolved) + \
     coalesce(octet_length(d.params), 0) AS bigint)";

/// Selects the first run that ended after the run with the end `$1` and the id `$2`, and not after the one with the end `$3`
/// and the id `$4`.
pub(crate) const NEXT_ENDED: &str = concat!(
    "SELECT finished_at, id FROM runs WHERE finished_at IS NOT NULL AND (finished_at, id) > ($1, $2) \
     AND (finished_at, id) <= ($3, $4) AND state ",
    condition!(ended runs),
    " ORDER BY finished_at, id LIMIT 1"
);
/// Selects the run up to which output was removed.
pub(crate) const OUTPUT_REMOVED: &str = "SELECT finished_at, run FROM output_removed WHERE one = 1";
pub(crate) const REMOVED_OUTPUT: &str = "INSERT INTO output_removed (one, finished_at, run) VALUES (1, $1, $2) \
     ON CONFLICT (one) DO UPDATE SET finished_at = excluded.finished_at, run = excluded.run";

/// Runs of a deleted cluster that are removed in one transaction.
pub(crate) const RUNS_AT_ONCE: i64 = 100;
/// The data of an event of which only its number is left. Older programs read it as a kind that they do not know.
pub(crate) const REMOVED_DATA: &str = r#"{"kind":"removed"}"#;
/// Bytes of events that are checked in one transaction, if there are several.
pub(crate) const REMOVED_EVENTS_BYTES: i64 = 8 * 1024 * 1024;
/// Counts the next events after `$1`, at most `$2` with `$3` bytes, and finds the last of them.
pub(crate) const EVENTS_WITHIN: &str = "SELECT count(*), max(seq) FROM (SELECT seq, octet_length(data) AS own, \
     sum(octet_length(data)) OVER (ORDER BY seq) AS upto FROM events WHERE seq > $1 ORDER BY seq LIMIT $2) AS sized \
     WHERE upto <= $3 OR upto = own";
/// The events after `$1` up to `$2` whose data contains `$3`: most others need not be decoded.
pub(crate) const EVENTS_WITH: &str = " WHERE seq > $1 AND seq <= $2 AND strpos(data, $3) > 0 ORDER BY seq";

/// Returns whether the content of an event goes with the cluster.
pub(crate) fn is_removed(event: &Event, cluster: ClusterId) -> bool {
    event.about.cluster == Some(cluster) && !matches!(event.change, Change::ClusterDeleted { .. })
}

lazy! {
    /// Finds the last event to remove, and the first one; none if there is none: an event is old if it or a later one is from before `$1`,
    /// so that one event with a time in the future keeps no others. Only some events are read, at growing distances from
    /// the first: the numbers have no gaps. Repeated until it finds none, it leaves no old event at the front.
    pub(crate) LAST_OLD_EVENT: String = {
        let distances: Vec<String> = distances().map(|distance| format!("({distance})")).collect();
        format!(
            "WITH distances (distance) AS (VALUES {}), first AS (SELECT min(seq) AS seq FROM events) \
             SELECT e.seq, first.seq FROM first CROSS JOIN distances JOIN events e ON e.seq = first.seq + distance \
             WHERE e.at < $1 ORDER BY e.seq DESC LIMIT 1",
            distances.join(", ")
        )
    };
}

/// Returns the distances from the first event at which pruning looks for old ones: 0, and each power of two.
pub(crate) fn distances() -> impl Iterator<Item = u64> {
    std::iter::once(0).chain((0..48).map(|power| 1 << power))
}
