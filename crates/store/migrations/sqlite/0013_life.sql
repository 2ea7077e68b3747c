-- Rounds: the attempts of a whole run, and the round to which an execution belongs. The results of a run are those of its last
-- round.
ALTER TABLE runs ADD COLUMN round INTEGER NOT NULL DEFAULT 1;
ALTER TABLE executions ADD COLUMN round INTEGER NOT NULL DEFAULT 1;
-- The constraints and actions of a run so far, as JSON; none if it had none.
ALTER TABLE runs ADD COLUMN life TEXT;

-- Backfills of stored jobs. Ids follow the order of their creation.
CREATE TABLE backfills (
    id       BLOB PRIMARY KEY,
    cluster  BLOB NOT NULL REFERENCES clusters (id),
    job      BLOB NOT NULL,
    ended_at INTEGER,
    -- The part that never changes and the part that changes, as JSON.
    made     TEXT NOT NULL,
    live     TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX backfills_of_job ON backfills (job);
CREATE INDEX backfills_of_cluster ON backfills (cluster);
