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
-- Messages about runs. They are removed with their run, and of each cluster the newest are kept.
CREATE TABLE deliveries (
    id         BLOB PRIMARY KEY,
    cluster    BLOB NOT NULL REFERENCES clusters (id),
    run        TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    job        TEXT,
    event      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    status     INTEGER NOT NULL,
    tries      INTEGER NOT NULL,
    -- NULL: it has ended.
    due_at     INTEGER,
    ended_at   INTEGER,
    -- The last try that has ended.
    tried_at   INTEGER,
    code       INTEGER,
    error      TEXT,
    message    TEXT NOT NULL
) STRICT;
CREATE INDEX deliveries_due ON deliveries (due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX deliveries_of_run ON deliveries (run);
CREATE INDEX deliveries_of_cluster ON deliveries (cluster, created_at, id);
CREATE INDEX deliveries_by_time ON deliveries (created_at, id);
