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
