-- Backfills of stored jobs. Ids follow the order of their creation.
CREATE TABLE backfills (
    id       uuid PRIMARY KEY,
    cluster  uuid NOT NULL REFERENCES clusters (id),
    job      uuid NOT NULL,
    ended_at bigint,
    -- The part that never changes and the part that changes, as JSON.
    made     text NOT NULL,
    live     text NOT NULL
);
CREATE INDEX backfills_of_job ON backfills (job);
CREATE INDEX backfills_of_cluster ON backfills (cluster);
