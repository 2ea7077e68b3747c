//! Owns the reads of both SQL stores: one text for both dialects, with `$n` for arguments. Where the dialects differ, a
//! [`Database`] has its own text.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use downbeat_core::Portion;
use downbeat_core::change::Event;
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::debug;
use downbeat_core::execution::{Execution, Status};
use downbeat_core::ids::{ClusterId, ExecutionId, NodeId, RunId, ServerId};
use downbeat_core::limits;
use downbeat_core::node::{NodeRecord, NodeStatus, Tombstone};
use downbeat_core::run::{RunBrief, RunRecord, RunState};
use downbeat_core::spec::Definition;
use downbeat_core::state::{LimitUse, NodeLive};
use jiff::Timestamp;
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::batch::{ENDED_EXECUTIONS, ENDED_RUNS};
use crate::copy::{Kept, Part, Seen};
use crate::counts::{self, CountRow};
use crate::filter::{
    Arg, DEBUG_RUNS, HOLDS, NODE_COUNTS, NODE_TOTALS, OPEN_EXECUTIONS, OPEN_RUNS, USES, arg, text,
};
use crate::instances;
use crate::list::list;
use crate::port::{
    Admission, EventFilter, Events, ExecutionFilter, Executions, InstanceCount, InstanceFacts,
    InstanceFilter, Listed, NodeTotals, Nodes, Output, OutputChunk, Page, Position, Result, RunFilter,
    RunKey, Runs, ServerRecord, Servers, Source, StandingKey, StandingResult, Tally, Totals, Volume,
};
use crate::rows::{
    Attempt, Bare, BriefRow, Code, ContentRow, Contents, Extent, Record, Stored, StoredDefinition,
    StoredNode, StoredRun, WithoutParams, condition, count, hashes_of, int, json, small,
};

/// How often rows are read at most until their contents are found.
const READS: u32 = 5;
/// Contents that are read at once: some may have megabytes, and each read has a time limit.
const CONTENTS: usize = 100;

#[async_trait]
pub(crate) trait Database: Send + Sync {
    /// The statement that reads the highest sequence number.
    const LAST_SEQ: &'static str;

    /// The tables whose sums are the kept counts.
    const COUNTS: &'static [&'static str];

    /// Selects the ids of the last attempts of the tasks of the standing run `$1` on nodes after the step `$2` and node
    /// `$3`, at most `$4`. The other attempts are read only from an index.
    const LAST_ATTEMPTS: &'static str;

    /// Selects the texts of the JSON array `$1`.
    const LISTED: &'static str;

    /// Reads the rows of a record's SELECT, followed by `rest`.
    async fn fetch<T: Record>(&self, rest: &str, args: Vec<Arg>) -> Result<Vec<T>>;

    /// Reads for the feed: it does not wait for other reads.
    async fn fetch_feed<T: Record>(&self, rest: &str, args: Vec<Arg>) -> Result<Vec<T>> {
        self.fetch(rest, args).await
    }

    /// Reads what may be a million rows: only each portion of them has a time limit.
    async fn fetch_many<T: Record>(&self, rest: &str, args: Vec<Arg>) -> Result<Vec<T>> {
        self.fetch(rest, args).await
    }

    /// Returns the condition that the id is one of a few, which a SELECT returns.
    fn is_among(ids: &str) -> String {
        format!("id IN ({ids})")
    }

    /// Returns the SELECT that counts the ended rows of a kind by status.
    fn ended(kind: i16) -> String;

    /// Returns the SELECT of a [`Volume`]: the first and the last event, the bytes of output, and those on the disk.
    fn volume() -> String;

    /// Reads the contents with these few hashes.
    async fn fetch_contents(&self, hashes: &[String]) -> Result<Vec<ContentRow<'static>>>;

    async fn fetch_runs(&self, ids: &[RunId]) -> Result<Vec<StoredRun>>;

    async fn fetch_by_id<T: Record>(&self, ids: &[ExecutionId]) -> Result<Vec<T>>;

    async fn fetch_definitions(&self, runs: &[RunId]) -> Result<Vec<StoredDefinition>>;

    async fn fetch_held(&self, nodes: &[NodeId]) -> Result<Vec<Execution>>;

    /// Reads the results of a run that these nodes have or had: those of each node by execution.
    async fn fetch_results_on(&self, run: &RunId, nodes: &[NodeId]) -> Result<Vec<Attempt>>;

    async fn fetch_seen(&self, nodes: &[NodeId]) -> Result<Vec<Seen>>;

    async fn fetch_cached(
        &self,
        cluster: ClusterId,
        keys: &[Arc<str>],
    ) -> Result<BTreeMap<Arc<str>, Execution>>;

    async fn fetch_output(&self, from: &[(ExecutionId, u64)], limit: u32) -> Result<Vec<OutputChunk>>;

    async fn send_snapshot(&self, to: mpsc::Sender<Part>) -> Result<()>;
}

pub(crate) async fn one<T: Record>(
    database: &impl Database,
    rest: &str,
    args: Vec<Arg>,
) -> Result<Option<T>> {
    Ok(database.fetch(rest, args).await?.pop())
}

/// Reads rows, then the contents that they refer to, each once. If a content was removed in between, with all rows that
/// referred to it, the rows are read again.
async fn whole<T: Stored, F>(database: &impl Database, read: impl Fn() -> F) -> Result<Vec<T::Whole>>
where
    F: Future<Output = Result<Vec<T>>> + Send,
{
    let mut tries = READS;
    loop {
        let rows = read().await?;
        let hashes: Vec<String> = hashes_of(&rows).into_iter().map(str::to_owned).collect();
        let mut found = Vec::new();
        for some in hashes.chunks(CONTENTS) {
            found.extend(database.fetch_contents(some).await?);
        }
        let mut contents = Contents::of(found);
        tries -= 1;
        if tries == 0 || hashes.iter().all(|hash| contents.has(hash)) {
            return rows.into_iter().map(|row| row.whole(&mut contents)).collect();
        }
    }
}

pub(crate) async fn number(database: &impl Database, sql: &str, args: Vec<Arg>) -> Result<u64> {
    count(one::<Option<i64>>(database, sql, args).await?.flatten().unwrap_or(0))
}

/// Returns the standing runs of one cluster or of all, from this one on.
pub(crate) async fn standing_runs(
    database: &impl Database,
    cluster: Option<ClusterId>,
    from: Option<&StandingKey>,
) -> Result<Vec<RunId>> {
    if let Some(cluster) = cluster {
        return Ok(vec![RunId::standing(cluster)]);
    }
    let from = from.map_or(RunId::STANDING, |from| from.run.as_str());
    // The semicolon is the character after the colon.
    let sql = "SELECT id FROM runs WHERE id >= $1 AND id < 'standing;' ORDER BY id";
    Ok(database.fetch::<String>(sql, vec![text(from)]).await?.into_iter().map(RunId::from).collect())
}

/// Returns the arguments of a range of standing executions: their run, the step and node before it, and the most rows.
pub(crate) fn standing_range(run: &RunId, after: Option<&StandingKey>, most: usize) -> Vec<Arg> {
    let (step, node) = match after.filter(|after| after.run == *run) {
        Some(after) => (small(after.step), after.node.0),
        None => (-1, Uuid::nil()),
    };
    vec![text(run.as_str()), arg(step), arg(node), arg(limit(most))]
}

fn limit(most: usize) -> i64 {
    i64::try_from(most).unwrap_or(i64::MAX)
}

#[async_trait]
impl<D: Database> Events for D {
    async fn events(&self, filter: &EventFilter, portion: Portion) -> Result<Vec<Event>> {
        let mut args = vec![arg(int(filter.since)), arg(limit(portion.rows)), arg(limit(portion.bytes))];
        args.extend(filter.run.as_ref().map(|run| text(run.as_str())));
        let of_run = if filter.run.is_some() { "run = $4 AND " } else { "" };
        // The sizes are read first: neither database reads the data for them.
        let rest = format!(
            " WHERE {of_run}seq > $1 AND seq <= (SELECT max(seq) FROM (SELECT seq, octet_length(data) AS own, \
             sum(octet_length(data)) OVER (ORDER BY seq) AS upto FROM events WHERE {of_run}seq > $1 \
             ORDER BY seq LIMIT $2) AS sized WHERE upto <= $3 OR upto = own) ORDER BY seq LIMIT $2"
        );
        self.fetch_feed(&rest, args).await
    }

    async fn last_seq(&self) -> Result<u64> {
        let last: Vec<Option<i64>> = self.fetch_feed(D::LAST_SEQ, vec![]).await?;
        count(last.into_iter().flatten().next().unwrap_or(0))
    }
}

#[async_trait]
impl<D: Database> Nodes for D {
    async fn cluster(&self, name_or_id: &str) -> Result<Option<ClusterId>> {
        let id: Option<Uuid> = name_or_id.parse().ok();
        let rest = concat!(
            " WHERE (id = $1 OR name = $2) AND ",
            condition!(alive clusters),
            " ORDER BY (id = $1) IS TRUE DESC LIMIT 1"
        );
        one(self, rest, vec![arg(id), text(name_or_id)]).await
    }

    async fn clusters(&self) -> Result<Vec<ClusterRecord>> {
        self.fetch(concat!(" WHERE ", condition!(alive clusters), " ORDER BY name"), vec![]).await
    }

    async fn cluster_record(&self, id: ClusterId) -> Result<Option<ClusterRecord>> {
        one(self, concat!(" WHERE id = $1 AND ", condition!(alive clusters)), vec![arg(id.0)]).await
    }

    async fn removed_clusters(&self) -> Result<Vec<ClusterId>> {
        self.fetch(" WHERE deleted_at IS NOT NULL ORDER BY id", vec![]).await
    }

    async fn nodes(&self, cluster: Option<ClusterId>) -> Result<Vec<NodeRecord>> {
        let wanted = match cluster {
            Some(_) => " WHERE n.cluster = $1",
            None => concat!(" WHERE n.cluster NOT IN (", condition!(deleted clusters), ")"),
        };
        let rest = format!("{wanted} ORDER BY n.hostname, n.id");
        let args = || cluster.into_iter().map(|cluster| arg(cluster.0)).collect();
        whole::<StoredNode, _>(self, || self.fetch_many(&rest, args())).await
    }

    async fn node(&self, id: NodeId) -> Result<Option<NodeRecord>> {
        let read = || self.fetch(" WHERE n.id = $1", vec![arg(id.0)]);
        Ok(whole::<StoredNode, _>(self, read).await?.pop())
    }

    async fn tombstones(&self, node: Option<NodeId>) -> Result<Vec<Tombstone>> {
        let wanted = if node.is_some() { " WHERE node = $1" } else { "" };
        let args = node.into_iter().map(|node| arg(node.0)).collect();
        self.fetch(&format!("{wanted} ORDER BY node, at, session"), args).await
    }

    async fn latest_tombstones(&self, most: u32) -> Result<Vec<Tombstone>> {
        self.fetch(" ORDER BY at DESC, node, session LIMIT $1", vec![arg(i64::from(most))]).await
    }

    async fn seen(&self, nodes: &[NodeId]) -> Result<Vec<Seen>> {
        self.fetch_seen(nodes).await
    }

    async fn silent_nodes(&self, before: Timestamp) -> Result<Vec<(NodeId, NodeLive)>> {
        let rest = " WHERE status <> $1 AND seen_at < $2 ORDER BY node";
        self.fetch(rest, vec![arg(NodeStatus::Offline.code()), arg(before.as_microsecond())]).await
    }
}

#[async_trait]
impl<D: Database> Runs for D {
    async fn run(&self, id: &RunId) -> Result<Option<RunRecord>> {
        let read = || self.fetch(" WHERE r.id = $1", vec![text(id.as_str())]);
        Ok(whole::<StoredRun, _>(self, read).await?.pop())
    }

    async fn runs_by_id(&self, ids: &[RunId]) -> Result<Vec<RunRecord>> {
        whole(self, || self.fetch_runs(ids)).await
    }

    async fn runs_of_key(&self, key: &str) -> Result<Vec<RunRecord>> {
        // The index begins with the cluster.
        let rest = " WHERE r.cluster IN (SELECT id FROM clusters) AND r.idempotency_key = $1 ORDER BY r.id";
        whole::<StoredRun, _>(self, || self.fetch(rest, vec![text(key)])).await
    }

    async fn runs(&self, filter: &RunFilter, page: &Page<RunKey>) -> Result<Listed<RunBrief, RunKey>> {
        let Listed { rows, total, mut next } = list(self, filter, page).await?;
        let (mut runs, mut bytes): (Vec<RunBrief>, usize) = (Vec::new(), 0);
        for BriefRow { mut run, is_complete } in rows {
            // Until the rows of older programs are completed, a page that reads many definitions has fewer rows.
            if bytes >= limits::PAGE_BYTES {
                next = runs.last().map(|last| Position::after(RunKey::of(last, filter.order)));
                break;
            }
            if !is_complete {
                let Some(extent) =
                    one::<Extent>(self, " WHERE d.run = $1", vec![text(run.id.as_str())]).await?
                else {
                    // The run has been removed meanwhile.
                    continue;
                };
                (run.steps, run.nodes, bytes) = (extent.steps, extent.nodes, bytes + extent.bytes);
            }
            runs.push(run);
        }
        Ok(Listed { rows: runs, total, next })
    }

    async fn definitions(&self, runs: &[RunId]) -> Result<BTreeMap<RunId, Arc<Definition>>> {
        Ok(whole(self, || self.fetch_definitions(runs)).await?.into_iter().collect())
    }

    async fn open_runs(&self) -> Result<Vec<RunRecord>> {
        let rest = concat!(
            " WHERE r.state ",
            condition!(open runs),
            " AND r.cluster NOT IN (",
            condition!(deleted clusters),
            ") ORDER BY r.created_at, r.id"
        );
        whole::<StoredRun, _>(self, || self.fetch_many(rest, vec![])).await
    }

    async fn open_run_owners(&self) -> Result<Vec<(RunId, ServerId)>> {
        let rest = concat!(
            " WHERE state ",
            condition!(open runs),
            " AND cluster NOT IN (",
            condition!(deleted clusters),
            ") ORDER BY created_at, id"
        );
        self.fetch(rest, vec![]).await
    }
}

#[async_trait]
impl<D: Database> Executions for D {
    async fn execution(&self, id: ExecutionId) -> Result<Option<Execution>> {
        one(self, " WHERE id = $1", vec![arg(id.0)]).await
    }

    async fn executions_by_id(&self, ids: &[ExecutionId]) -> Result<Vec<Execution>> {
        self.fetch_by_id(ids).await
    }

    async fn bare_executions_by_id(&self, ids: &[ExecutionId]) -> Result<Vec<Execution>> {
        Ok(self.fetch_by_id(ids).await?.into_iter().map(|Bare(execution)| execution).collect())
    }

    async fn executions(
        &self,
        filter: &ExecutionFilter,
        page: &Page<ExecutionId>,
    ) -> Result<Listed<Execution, ExecutionId>> {
        list(self, filter, page).await
    }

    async fn bare_executions(
        &self,
        filter: &ExecutionFilter,
        page: &Page<ExecutionId>,
    ) -> Result<Listed<Execution, ExecutionId>> {
        let Listed { rows, total, next } = list(self, filter, page).await?;
        Ok(Listed { rows: rows.into_iter().map(|Bare(execution)| execution).collect(), total, next })
    }

    async fn executions_of(&self, run: &RunId) -> Result<Vec<Execution>> {
        let rest = format!(" WHERE run = $1 AND {} ORDER BY id", instances::OF_LAST_ROUND);
        self.fetch_many(&rest, vec![text(run.as_str())]).await
    }

    async fn instances(
        &self,
        run: &RunId,
        filter: &InstanceFilter,
        portion: Portion,
    ) -> Result<Vec<Execution>> {
        let ((step, id), last) = filter.span();
        let mut args = vec![
            text(run.as_str()),
            arg(filter.wanted().fold(0, |bits, status| bits | 1_i32 << status.code())),
            arg(small(step)),
            arg(id.0),
            arg(small(last)),
            arg(filter.item.map(small)),
            arg(limit(portion.rows)),
            arg(limit(portion.bytes)),
        ];
        args.extend(filter.node.map(|node| arg(node.0)));
        let ids = if filter.node.is_some() { &instances::OF_NODE } else { &instances::OF_RUN };
        let rest = format!(" WHERE {} ORDER BY step, id", D::is_among(ids));
        Ok(self.fetch(&rest, args).await?.into_iter().map(|WithoutParams(execution)| execution).collect())
    }

    async fn instance_counts(&self, run: &RunId) -> Result<Vec<InstanceCount>> {
        let kept: Vec<CountRow<'_>> =
            self.fetch(&counts::of_run(D::COUNTS), vec![text(run.as_str())]).await?;
        match counts::by_step(&kept)? {
            Some(counts) => Ok(counts),
            None => Ok(instances::counts(self.fetch(&instances::COUNTS, vec![text(run.as_str())]).await?)),
        }
    }

    async fn run_counts(&self, runs: &[RunId]) -> Result<BTreeMap<RunId, BTreeMap<Status, u64>>> {
        let kept = self.fetch(&counts::of_runs(D::COUNTS, D::LISTED), vec![text(&json(&runs)?)]).await?;
        let mut totals = counts::Totals::of(kept)?;
        if !totals.uncounted.is_empty() {
            let listed = vec![text(&json(&totals.uncounted)?)];
            let counted = self.fetch(&instances::counts_of_runs(D::LISTED), listed).await?;
            for (run, counts) in instances::counts_by_run(counted) {
                totals.add(&run, &counts);
            }
        }
        Ok(totals.of_runs)
    }

    async fn instance_facts(&self, run: &RunId) -> Result<Vec<InstanceFacts>> {
        let rest = format!(" WHERE run = $1 AND {} ORDER BY id", instances::OF_LAST_ROUND);
        let attempts: Vec<Attempt> = self.fetch(&rest, vec![text(run.as_str())]).await?;
        Ok(instances::results(attempts))
    }

    async fn instance_facts_on(&self, run: &RunId, nodes: &[NodeId]) -> Result<Vec<InstanceFacts>> {
        Ok(self.fetch_results_on(run, nodes).await?.into_iter().map(|attempt| attempt.facts).collect())
    }

    async fn placed_nodes(&self, run: &RunId) -> Result<Vec<NodeId>> {
        self.fetch(&instances::PLACED_NODES, vec![text(run.as_str())]).await
    }

    async fn unsuccessful_nodes(&self, run: &RunId) -> Result<Vec<(NodeId, Status)>> {
        self.fetch(&instances::UNSUCCESSFUL_NODES, vec![text(run.as_str())]).await
    }

    async fn standing_results(
        &self,
        cluster: Option<ClusterId>,
        after: Option<&StandingKey>,
        most: u32,
    ) -> Result<Vec<StandingResult>> {
        let rest = format!(" WHERE {} ORDER BY step, pinned", D::is_among(D::LAST_ATTEMPTS));
        let (most, mut found) = (most as usize, Vec::new());
        for run in standing_runs(self, cluster, after).await? {
            if found.len() < most {
                let args = standing_range(&run, after, most - found.len());
                found.extend(self.fetch::<StandingResult>(&rest, args).await?);
            }
        }
        Ok(found)
    }

    async fn open_executions(&self) -> Result<Vec<Execution>> {
        // Sorted here: with ORDER BY, SQLite would read all executions in the order of their ids.
        let rest = concat!(" WHERE ", condition!(open executions));
        let mut open: Vec<Execution> = self.fetch_many(rest, vec![]).await?;
        open.sort_unstable_by_key(|execution| execution.id);
        Ok(open)
    }

    async fn held_by(&self, nodes: &[NodeId]) -> Result<Vec<Execution>> {
        self.fetch_held(nodes).await
    }

    async fn cached(&self, cluster: ClusterId, keys: &[Arc<str>]) -> Result<BTreeMap<Arc<str>, Execution>> {
        self.fetch_cached(cluster, keys).await
    }
}

#[async_trait]
impl<D: Database> Admission for D {
    async fn holds(&self) -> Result<Vec<(NodeId, RunId)>> {
        self.fetch(&format!("{HOLDS} ORDER BY h.node"), vec![]).await
    }

    async fn uses(&self) -> Result<Vec<LimitUse>> {
        self.fetch(USES, vec![]).await
    }
}

#[async_trait]
impl<D: Database> Output for D {
    async fn output(&self, execution: ExecutionId, from: u64, limit: u32) -> Result<Vec<OutputChunk>> {
        // The first chunk is the one that contains `from`: looking it up avoids reading all chunks before it.
        let rest = " WHERE execution = $1 AND start_byte >= coalesce(\
             (SELECT max(start_byte) FROM output WHERE execution = $1 AND start_byte <= $2), 0) \
             AND start_byte + octet_length(text) > $2 ORDER BY start_byte LIMIT $3";
        self.fetch(rest, vec![arg(execution.0), arg(int(from)), arg(i64::from(limit))]).await
    }

    async fn output_tail(&self, execution: ExecutionId, limit: u32) -> Result<Vec<OutputChunk>> {
        let rest = " WHERE execution = $1 ORDER BY start_byte DESC LIMIT $2";
        let mut chunks: Vec<_> = self.fetch(rest, vec![arg(execution.0), arg(i64::from(limit))]).await?;
        chunks.reverse();
        Ok(chunks)
    }
}

#[async_trait]
impl<D: Database> Servers for D {
    async fn servers(&self) -> Result<Vec<ServerRecord>> {
        self.fetch(" ORDER BY name", vec![]).await
    }
}

#[async_trait]
impl<D: Database> Totals for D {
    async fn tally(&self) -> Result<Tally> {
        let runs = format!("{OPEN_RUNS} UNION ALL {} ORDER BY 1", D::ended(ENDED_RUNS));
        let executions = format!("{OPEN_EXECUTIONS} UNION ALL {} ORDER BY 1", D::ended(ENDED_EXECUTIONS));
        // Together, so that they wait for a busy database once.
        let (mut runs, commands, executions, nodes) = tokio::try_join!(
            self.fetch::<(RunState, u64)>(&runs, vec![]),
            self.fetch::<(RunState, u64)>(DEBUG_RUNS, vec![text(debug::JOB)]),
            self.fetch::<(Status, u64)>(&executions, vec![]),
            self.fetch::<(NodeStatus, u64)>(NODE_COUNTS, vec![]),
        )?;
        for (state, commands) in commands {
            let of_state = runs.iter_mut().filter(|(other, _)| *other == state);
            of_state.for_each(|(_, total)| *total = total.saturating_sub(commands));
        }
        runs.retain(|(_, total)| *total > 0);
        Ok(Tally { runs, executions, nodes })
    }

    async fn volume(&self) -> Result<Volume> {
        Ok(one(self, &D::volume(), vec![]).await?.unwrap_or_default())
    }

    async fn node_totals(&self, node: NodeId) -> Result<NodeTotals> {
        let mut totals = NodeTotals::default();
        for part in self
            .fetch::<NodeTotals>(NODE_TOTALS, vec![arg(node.0), arg(i64::from(limits::ROWS_READ))])
            .await?
        {
            totals.executions.extend(part.executions);
            totals.claimed_at = totals.claimed_at.max(part.claimed_at);
            totals.finished_at = totals.finished_at.max(part.finished_at);
        }
        Ok(totals)
    }
}

#[async_trait]
impl<D: Database> Source for D {
    async fn snapshot(&self, to: mpsc::Sender<Part>) -> Result<()> {
        self.send_snapshot(to).await
    }

    async fn kept(&self) -> Result<Kept> {
        let kept: Kept = one(self, "", vec![]).await?.unwrap_or_default();
        Ok(Kept { removed: self.removed_clusters().await?, ..kept })
    }

    async fn presence(&self) -> Result<Vec<Seen>> {
        self.fetch(" ORDER BY node", vec![]).await
    }

    async fn output_of(&self, from: &[(ExecutionId, u64)], limit: u32) -> Result<Vec<OutputChunk>> {
        self.fetch_output(from, limit).await
    }
}
