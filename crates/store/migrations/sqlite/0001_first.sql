-- Ids are 16-byte blobs, times whole microseconds since 1970, statuses the numbers in rows/codes.rs.

CREATE TABLE clusters (
    id         BLOB PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO clusters (id, name, created_at) VALUES (x'0d0bea70000070008000000000000001', 'default', 0);

-- What a node says of itself. What moves with every heartbeat is in `presence`, so that it rewrites few bytes.
CREATE TABLE nodes (
    id          BLOB PRIMARY KEY,
    cluster     BLOB NOT NULL REFERENCES clusters (id),
    hostname    TEXT NOT NULL,
    description TEXT NOT NULL
) STRICT;
CREATE INDEX nodes_by_cluster ON nodes (cluster, hostname);

CREATE TABLE presence (
    node          BLOB PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    session       BLOB NOT NULL,
    status        INTEGER NOT NULL,
    draining      INTEGER NOT NULL,
    registered_at INTEGER NOT NULL,
    seen_at       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
    id                  TEXT PRIMARY KEY,
    cluster             BLOB NOT NULL REFERENCES clusters (id),
    job                 TEXT,
    state               INTEGER NOT NULL,
    submitted_by        TEXT NOT NULL,
    idempotency_key     TEXT,
    created_at          INTEGER NOT NULL,
    started_at          INTEGER,
    finished_at         INTEGER,
    partial             INTEGER,
    error               TEXT,
    cancel_requested_at INTEGER,
    owner               BLOB NOT NULL,
    epoch               INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX runs_by_key ON runs (cluster, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_by_creation ON runs (created_at, id);
CREATE INDEX runs_open ON runs (created_at, id) WHERE state NOT IN (10, 11, 12);
CREATE INDEX runs_ended ON runs (finished_at, id) WHERE finished_at IS NOT NULL;

-- The large part of a run, written once: a run that moves does not rewrite it.
CREATE TABLE definitions (
    run        TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    definition TEXT NOT NULL,
    resolved   TEXT NOT NULL
) STRICT;

-- No foreign key to `runs`: the guard of every change looks at the run already.
CREATE TABLE executions (
    id          BLOB PRIMARY KEY,
    run         TEXT NOT NULL,
    step        INTEGER NOT NULL,
    pinned      BLOB,
    attempt     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    status      INTEGER NOT NULL,
    not_before  INTEGER,
    token       BLOB,
    lease_node  BLOB,
    session     BLOB,
    granted_at  INTEGER,
    stop        INTEGER NOT NULL,
    started_at  INTEGER,
    verdict     INTEGER,
    exit_code   INTEGER,
    error       TEXT,
    finished_at INTEGER,
    reason      TEXT,
    ended_at    INTEGER
) STRICT, WITHOUT ROWID;
-- The id follows by itself: lists of a run and of a node come in order without a sort.
CREATE INDEX executions_by_run ON executions (run);
CREATE INDEX executions_by_node ON executions (coalesce(pinned, lease_node));
CREATE INDEX executions_open ON executions (lease_node) WHERE status <= 2;

CREATE TABLE feed (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    last_seq INTEGER NOT NULL
) STRICT;
INSERT INTO feed (one, last_seq) VALUES (1, 0);

CREATE TABLE events (
    seq    INTEGER PRIMARY KEY,
    at     INTEGER NOT NULL,
    server BLOB NOT NULL,
    kind   TEXT NOT NULL,
    run    TEXT,
    data   TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_run ON events (run) WHERE run IS NOT NULL;

-- How many have ended, by kind (1 executions, 2 runs) and status: counting them would read all of them.
CREATE TABLE ended (
    kind  INTEGER NOT NULL,
    code  INTEGER NOT NULL,
    total INTEGER NOT NULL,
    PRIMARY KEY (kind, code)
) STRICT, WITHOUT ROWID;

CREATE TABLE output (
    execution  BLOB NOT NULL,
    start_byte INTEGER NOT NULL,
    stream     INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    text       TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX output_by_place ON output (execution, start_byte);

CREATE TABLE servers (
    id         BLOB PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    http       TEXT NOT NULL,
    grpc       TEXT NOT NULL,
    version    TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
