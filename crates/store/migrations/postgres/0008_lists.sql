-- How many steps and nodes a run has, so that lists need not read its definition. NULL in rows of older
-- programs, until pruning fills them in.
-- The indexes of this schema are in postgres/indexes.rs: they are built while servers write.
ALTER TABLE runs ADD COLUMN steps integer;
ALTER TABLE runs ADD COLUMN nodes integer;

-- Identifies the request that used the idempotency key. NULL in rows of older programs: their keys match any request.
ALTER TABLE runs ADD COLUMN request_hash text;

-- Why and when the rest of a run was ended, other than by a person's request. NULL in rows of older programs.
ALTER TABLE runs ADD COLUMN stop_cause smallint;
ALTER TABLE runs ADD COLUMN stopped_at bigint;

-- Which counts of a run's instances are kept: 0 none, 1 those of the run, 2 also those of its steps. NULL in rows of
-- older programs, and where one of them made a change that the counts lack.
ALTER TABLE runs ADD COLUMN keeps smallint;

-- The status of the attempt that this one replaces. NULL for a first attempt, and in rows of older programs.
ALTER TABLE executions ADD COLUMN former smallint;

-- How many instances of a run have a status, by step; step -1 is the whole run.
CREATE TABLE instance_counts (
    run     text COLLATE "C" NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    step    integer NOT NULL,
    status  smallint NOT NULL,
    total   bigint NOT NULL,
    carried bigint NOT NULL,
    cached  bigint NOT NULL,
    PRIMARY KEY (run, step, status)
) WITH (fillfactor = 50);

-- What commits have changed since, to be added up now and then. Status -1: a change is missing.
CREATE TABLE instance_counts_lately (
    run     text COLLATE "C" NOT NULL,
    step    integer NOT NULL,
    status  smallint NOT NULL,
    total   bigint NOT NULL,
    carried bigint NOT NULL,
    cached  bigint NOT NULL
);
CREATE INDEX instance_counts_lately_by_run ON instance_counts_lately (run);

-- A program that keeps counts says so in the settings of its connections.
CREATE FUNCTION counts_miss_a_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO instance_counts_lately (run, step, status, total, carried, cached)
    SELECT id, -1, -1, 1, 0, 0 FROM runs WHERE id = NEW.run AND keeps > 0;
    RETURN NULL;
END $$;
CREATE TRIGGER counts_miss_a_change AFTER INSERT OR UPDATE ON executions FOR EACH ROW
    WHEN (current_setting('downbeat.counts', true) IS DISTINCT FROM 'kept')
    EXECUTE FUNCTION counts_miss_a_change();
