-- Times are whole microseconds since 1970, statuses the numbers in rows/codes.rs. Text that is sorted or looked up
-- has collation "C": the order of bytes, as in the other stores.

CREATE TABLE clusters (
    id         uuid PRIMARY KEY,
    name       text COLLATE "C" NOT NULL UNIQUE,
    created_at bigint NOT NULL
);

INSERT INTO clusters (id, name, created_at) VALUES ('0d0bea70-0000-7000-8000-000000000001', 'default', 0);

-- What a node says of itself. What moves with every heartbeat is in `presence`, so that it rewrites few bytes.
CREATE TABLE nodes (
    id          uuid PRIMARY KEY,
    cluster     uuid NOT NULL REFERENCES clusters (id),
    hostname    text COLLATE "C" NOT NULL,
    description text NOT NULL
);
CREATE INDEX nodes_by_cluster ON nodes (cluster, hostname);

-- Rewritten all the time: room on each page lets an update stay on it and leave the index alone.
CREATE TABLE presence (
    node          uuid PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    session       uuid NOT NULL,
    status        smallint NOT NULL,
    draining      boolean NOT NULL,
    registered_at bigint NOT NULL,
    seen_at       bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE runs (
    id                  text COLLATE "C" PRIMARY KEY,
    cluster             uuid NOT NULL REFERENCES clusters (id),
    job                 text COLLATE "C",
    state               smallint NOT NULL,
    submitted_by        text NOT NULL,
    idempotency_key     text COLLATE "C",
    created_at          bigint NOT NULL,
    started_at          bigint,
    finished_at         bigint,
    partial             boolean,
    error               text,
    cancel_requested_at bigint,
    owner               uuid NOT NULL,
    epoch               bigint NOT NULL
);
CREATE UNIQUE INDEX runs_by_key ON runs (cluster, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX runs_by_creation ON runs (created_at, id);
CREATE INDEX runs_open ON runs (created_at, id) WHERE state NOT IN (10, 11, 12);
CREATE INDEX runs_ended ON runs (finished_at, id) WHERE finished_at IS NOT NULL;

-- The large part of a run, written once: a run that moves does not rewrite it.
CREATE TABLE definitions (
    run        text COLLATE "C" PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    definition text NOT NULL,
    resolved   text NOT NULL
);

-- No foreign key to `runs`: the guard of every change looks at the run already.
CREATE TABLE executions (
    id          uuid PRIMARY KEY,
    run         text COLLATE "C" NOT NULL,
    step        integer NOT NULL,
    pinned      uuid,
    attempt     integer NOT NULL,
    created_at  bigint NOT NULL,
    status      smallint NOT NULL,
    not_before  bigint,
    token       uuid,
    lease_node  uuid,
    session     uuid,
    granted_at  bigint,
    stop        boolean NOT NULL,
    started_at  bigint,
    verdict     smallint,
    exit_code   integer,
    error       text,
    finished_at bigint,
    reason      text,
    ended_at    bigint
);
CREATE INDEX executions_by_run ON executions (run, id);
CREATE INDEX executions_by_node ON executions (coalesce(pinned, lease_node), id);
CREATE INDEX executions_open ON executions (lease_node) WHERE status <= 2;

-- One row. Whoever commits raises it as the last thing before its events, and holds its lock until it has committed.
CREATE TABLE feed (
    one      smallint PRIMARY KEY CHECK (one = 1),
    last_seq bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO feed (one, last_seq) VALUES (1, 0);

CREATE TABLE events (
    seq    bigint PRIMARY KEY,
    at     bigint NOT NULL,
    server uuid NOT NULL,
    kind   text NOT NULL,
    run    text COLLATE "C",
    data   text NOT NULL
);
-- Long ones are stored aside, not compressed: that took an eighth of a commit's time.
ALTER TABLE events ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX events_by_run ON events (run, seq) WHERE run IS NOT NULL;

-- How many have ended, by kind (1 executions, 2 runs) and status: counting them would read all of them.
CREATE TABLE ended (
    kind  smallint NOT NULL,
    code  smallint NOT NULL,
    total bigint NOT NULL,
    PRIMARY KEY (kind, code)
) WITH (fillfactor = 50);

-- Bytes, not text: what a process writes may hold a NUL, which text here cannot.
CREATE TABLE output (
    execution  uuid NOT NULL,
    start_byte bigint NOT NULL,
    stream     smallint NOT NULL,
    at         bigint NOT NULL,
    text       bytea NOT NULL,
    PRIMARY KEY (execution, start_byte)
);

CREATE TABLE servers (
    id         uuid PRIMARY KEY,
    name       text COLLATE "C" NOT NULL UNIQUE,
    http       text NOT NULL,
    grpc       text NOT NULL,
    version    text NOT NULL,
    started_at bigint NOT NULL,
    seen_at    bigint NOT NULL
);
