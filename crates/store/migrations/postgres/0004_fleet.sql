-- When a run was paused, when one that had to wait was let in, and which run it tries again.
ALTER TABLE runs ADD COLUMN paused_at bigint;
ALTER TABLE runs ADD COLUMN admitted_at bigint;
ALTER TABLE runs ADD COLUMN retry_of text COLLATE "C";

-- The values of a job's params. Nothing: there are none.
ALTER TABLE definitions ADD COLUMN params text;

-- Params as they came out for this attempt, the execution whose result it took over, and what the task said.
ALTER TABLE executions ADD COLUMN params text;
ALTER TABLE executions ADD COLUMN reused uuid;
ALTER TABLE executions ADD COLUMN outputs text;

-- Nodes that an exclusive run has for itself. A row of a run that has ended counts for nothing: a program from before
-- leaves it behind. No foreign key to `runs`: the guard has looked at the run already.
CREATE TABLE holds (
    node uuid PRIMARY KEY,
    run  text COLLATE "C" NOT NULL
);
CREATE INDEX holds_by_run ON holds (run);
