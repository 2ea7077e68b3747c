-- Messages about runs. They are removed with their run, and of each cluster the newest are kept.
CREATE TABLE deliveries (
    id         uuid PRIMARY KEY,
    cluster    uuid NOT NULL REFERENCES clusters (id),
    run        text NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    job        text,
    event      text NOT NULL,
    created_at bigint NOT NULL,
    status     smallint NOT NULL,
    tries      integer NOT NULL,
    -- NULL: it has ended.
    due_at     bigint,
    ended_at   bigint,
    -- The last try that has ended.
    tried_at   bigint,
    code       integer,
    error      text,
    message    text NOT NULL
);
CREATE INDEX deliveries_due ON deliveries (due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX deliveries_of_run ON deliveries (run);
CREATE INDEX deliveries_of_cluster ON deliveries (cluster, created_at, id);
CREATE INDEX deliveries_by_time ON deliveries (created_at, id);
