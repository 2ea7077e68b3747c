-- How many steps and nodes a run has, so that lists need not read its definition. NULL in rows of older
-- programs, until a server completes them.
ALTER TABLE runs ADD COLUMN steps INTEGER;
ALTER TABLE runs ADD COLUMN nodes INTEGER;

-- The same indexes as in postgres/indexes.rs.
CREATE INDEX runs_by_cluster ON runs (cluster, created_at, id);
CREATE INDEX runs_by_job ON runs (job, created_at, id) WHERE job IS NOT NULL;
CREATE INDEX runs_by_end ON runs (state, created_at, id) WHERE state IN (10, 11, 12);
CREATE INDEX runs_incomplete ON runs (id) WHERE steps IS NULL;
CREATE INDEX executions_unsuccessful ON executions (run, id) WHERE status > 3;
CREATE INDEX limit_uses_at_once ON limit_uses (execution) WHERE until IS NULL;

-- The number of open runs is counted for each new run. On PostgreSQL an index would not save reading the rows: it does not
-- know which of them are visible.
CREATE INDEX runs_open_by_cluster ON runs (cluster, state, admitted_at) WHERE state NOT IN (10, 11, 12);

-- Lists of a run's results by status and step; the id follows by itself. An execution enters the index once, when it ends:
-- an index of all statuses would be rewritten each time the status changes.
CREATE INDEX executions_ended ON executions (run, status, step) WHERE status > 2;
-- An execution enters the index of nodes when it has one.
DROP INDEX executions_by_node;
CREATE INDEX executions_of_node ON executions (coalesce(pinned, lease_node)) WHERE coalesce(pinned, lease_node) IS NOT NULL;
-- The open executions, by node and run: those without a lease have no node.
DROP INDEX executions_open;
CREATE INDEX executions_open_by_node ON executions (lease_node, run, step) WHERE status <= 2;
-- Further attempts: they show which earlier attempts are not results. Few instances have any.
CREATE INDEX executions_again ON executions (run, step, pinned, item, attempt) WHERE attempt > 1;
-- Results that were reused.
CREATE INDEX executions_reused ON executions (run, step, cache_key) WHERE reused IS NOT NULL;

-- Identifies the request that used the idempotency key. NULL in rows of older programs: their keys match any request.
ALTER TABLE runs ADD COLUMN request_hash TEXT;

-- Why and when the rest of a run was ended, other than by a person's request. NULL in rows of older programs.
ALTER TABLE runs ADD COLUMN stop_cause INTEGER;
ALTER TABLE runs ADD COLUMN stopped_at INTEGER;

-- The waves and the budget of a roll-out, its last wave that began, and the failures that count against the budget. NULL
-- in rows of older programs.
ALTER TABLE runs ADD COLUMN waves INTEGER;
ALTER TABLE runs ADD COLUMN budget INTEGER;
ALTER TABLE runs ADD COLUMN wave INTEGER;
ALTER TABLE runs ADD COLUMN wave_failures INTEGER;

-- Which counts of a run's instances are kept: 0 none, 1 those of the run, 2 also those of its steps. NULL in rows of
-- older programs, and where one of them made a change that the counts lack.
ALTER TABLE runs ADD COLUMN keeps INTEGER;
CREATE INDEX runs_uncounted ON runs (finished_at, id) WHERE keeps IS NULL AND finished_at IS NOT NULL;

-- The status of the attempt that this one replaces. NULL for a first attempt, and in rows of older programs.
ALTER TABLE executions ADD COLUMN former INTEGER;

-- How many instances of a run have a status, by step; step -1 is the whole run.
CREATE TABLE instance_counts (
    run     TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    step    INTEGER NOT NULL,
    status  INTEGER NOT NULL,
    total   INTEGER NOT NULL,
    carried INTEGER NOT NULL,
    cached  INTEGER NOT NULL,
    PRIMARY KEY (run, step, status)
) STRICT, WITHOUT ROWID;

-- The last event that the counts include. Older programs leave it behind.
ALTER TABLE feed ADD COLUMN counted_seq INTEGER;

-- Large texts that many rows have in common, each once, by its SHA-256: see rows/content.rs. A row with a hash does not
-- have the text itself. NULL in rows of older programs, and in rows with small texts.
CREATE TABLE contents (
    hash TEXT PRIMARY KEY,
    text TEXT NOT NULL
) STRICT;
ALTER TABLE definitions ADD COLUMN definition_hash TEXT;
ALTER TABLE definitions ADD COLUMN resolved_hash TEXT;
ALTER TABLE nodes ADD COLUMN common_hash TEXT;
CREATE INDEX definitions_by_definition ON definitions (definition_hash) WHERE definition_hash IS NOT NULL;
CREATE INDEX definitions_by_resolved ON definitions (resolved_hash) WHERE resolved_hash IS NOT NULL;
CREATE INDEX nodes_by_common ON nodes (common_hash) WHERE common_hash IS NOT NULL;

-- Contents that a row has stopped referring to. Pruning removes those that no row refers to. Triggers fill it, because
-- older programs remove rows, too.
CREATE TABLE contents_released (
    id   INTEGER PRIMARY KEY,
    hash TEXT NOT NULL
) STRICT;
CREATE TRIGGER definitions_release AFTER DELETE ON definitions
    WHEN OLD.definition_hash IS NOT NULL OR OLD.resolved_hash IS NOT NULL
BEGIN
    INSERT INTO contents_released (hash)
        SELECT hash FROM (SELECT OLD.definition_hash AS hash UNION ALL SELECT OLD.resolved_hash) WHERE hash IS NOT NULL;
END;
CREATE TRIGGER nodes_release AFTER DELETE ON nodes WHEN OLD.common_hash IS NOT NULL
BEGIN
    INSERT INTO contents_released (hash) VALUES (OLD.common_hash);
END;
CREATE TRIGGER nodes_replace AFTER UPDATE OF common_hash ON nodes
    WHEN OLD.common_hash IS NOT NULL AND OLD.common_hash IS NOT NEW.common_hash
BEGIN
    INSERT INTO contents_released (hash) VALUES (OLD.common_hash);
END;
