-- When a run was paused, when one that had to wait was let in, and which run it tries again.
ALTER TABLE runs ADD COLUMN paused_at INTEGER;
ALTER TABLE runs ADD COLUMN admitted_at INTEGER;
ALTER TABLE runs ADD COLUMN retry_of TEXT;

-- The values of a job's params. Nothing: there are none.
ALTER TABLE definitions ADD COLUMN params TEXT;

-- Params as they came out for this attempt, the execution whose result it took over, and what the task said.
ALTER TABLE executions ADD COLUMN params TEXT;
ALTER TABLE executions ADD COLUMN reused BLOB;
ALTER TABLE executions ADD COLUMN outputs TEXT;

-- Nodes that an exclusive run has for itself. A row of a run that has ended counts for nothing: a program from before
-- leaves it behind. No foreign key to `runs`: the guard has looked at the run already.
CREATE TABLE holds (
    node BLOB PRIMARY KEY,
    run  TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX holds_by_run ON holds (run);
