-- How many steps and nodes a run has, so that lists need not read its definition. NULL in rows of older programs.
ALTER TABLE runs ADD COLUMN steps INTEGER;
ALTER TABLE runs ADD COLUMN nodes INTEGER;

-- The same indexes as in postgres/indexes.rs.
CREATE INDEX runs_by_cluster ON runs (cluster, created_at, id);
CREATE INDEX runs_by_job ON runs (job, created_at, id) WHERE job IS NOT NULL;
CREATE INDEX runs_by_end ON runs (state, created_at, id) WHERE state IN (10, 11, 12);
CREATE INDEX executions_unsuccessful ON executions (run, id) WHERE status > 3;
CREATE INDEX limit_uses_at_once ON limit_uses (execution) WHERE until IS NULL;

-- Identifies the request that used the idempotency key. NULL in rows of older programs: their keys match any request.
ALTER TABLE runs ADD COLUMN request_hash TEXT;
