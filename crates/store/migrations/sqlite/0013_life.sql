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
