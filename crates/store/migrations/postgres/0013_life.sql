-- Rounds: the attempts of a whole run, and the round to which an execution belongs. The results of a run are those of its last
-- round.
ALTER TABLE runs ADD COLUMN round INTEGER NOT NULL DEFAULT 1;
ALTER TABLE executions ADD COLUMN round INTEGER NOT NULL DEFAULT 1;
-- The constraints and actions of a run so far, as JSON; none if it had none.
ALTER TABLE runs ADD COLUMN life text;

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
