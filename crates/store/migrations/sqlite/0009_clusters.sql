-- Clusters as records with versions. Older programs know only the cluster `default`: its row gets the defaults, which are
-- those of a cluster without standing tasks.
ALTER TABLE clusters ADD COLUMN description TEXT NOT NULL DEFAULT '';
ALTER TABLE clusters ADD COLUMN on_register INTEGER NOT NULL DEFAULT 0;
ALTER TABLE clusters ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE clusters ADD COLUMN updated_at INTEGER NOT NULL DEFAULT 0;
-- When it was deleted. From then on its name is its id with a colon before it, which no cluster can be named, until all rows
-- of the cluster are removed, this one last.
ALTER TABLE clusters ADD COLUMN deleted_at INTEGER;
-- No event up to this number is about the cluster, or is any more. NULL: none was checked.
ALTER TABLE clusters ADD COLUMN checked_seq INTEGER;
-- The standing tasks, as JSON: the last column, so that the others are read without it.
ALTER TABLE clusters ADD COLUMN list TEXT NOT NULL DEFAULT '{}';

-- The same indexes as in postgres/indexes.rs. Executions of standing tasks by task, node and attempt, and by task.
CREATE INDEX executions_standing ON executions (run, step, pinned, attempt) WHERE run >= 'standing:' AND run < 'standing;';
CREATE INDEX executions_of_task ON executions (run, step) WHERE run >= 'standing:' AND run < 'standing;';
