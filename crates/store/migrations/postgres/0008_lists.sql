-- How many steps and nodes a run has, so that lists need not read its definition. NULL in rows of older
-- programs, until a server completes them.
-- The indexes of this schema are in postgres/indexes.rs: they are built while servers write.
ALTER TABLE runs ADD COLUMN steps integer;
ALTER TABLE runs ADD COLUMN nodes integer;

-- Identifies the request that used the idempotency key. NULL in rows of older programs: their keys match any request.
ALTER TABLE runs ADD COLUMN request_hash text;

-- Why and when the rest of a run was ended, other than by a person's request. NULL in rows of older programs.
ALTER TABLE runs ADD COLUMN stop_cause smallint;
ALTER TABLE runs ADD COLUMN stopped_at bigint;

-- The waves and the budget of a roll-out, its last wave that began, and the failures that count against the budget. NULL
-- in rows of older programs.
ALTER TABLE runs ADD COLUMN waves integer;
ALTER TABLE runs ADD COLUMN budget integer;
ALTER TABLE runs ADD COLUMN wave integer;
ALTER TABLE runs ADD COLUMN wave_failures integer;

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
CREATE INDEX instance_counts_lately_by_run ON instance_counts_lately (run, status);

-- A program that keeps counts says so in the settings of its connections. One note of a run is enough: the program may
-- change a million executions.
CREATE FUNCTION counts_miss_a_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO instance_counts_lately (run, step, status, total, carried, cached)
    SELECT id, -1, -1, 1, 0, 0 FROM runs WHERE id = NEW.run AND keeps > 0
        AND NOT EXISTS (SELECT 1 FROM instance_counts_lately WHERE run = NEW.run AND status = -1);
    RETURN NULL;
END $$;
CREATE TRIGGER counts_miss_a_change AFTER INSERT OR UPDATE ON executions FOR EACH ROW
    WHEN (current_setting('downbeat.counts', true) IS DISTINCT FROM 'kept')
    EXECUTE FUNCTION counts_miss_a_change();

-- Large texts that many rows have in common, each once, by its SHA-256: see rows/content.rs. A row with a hash does not
-- have the text itself. NULL in rows of older programs, and in rows with small texts.
CREATE TABLE contents (
    hash text COLLATE "C" PRIMARY KEY,
    text text NOT NULL
);
ALTER TABLE definitions ADD COLUMN definition_hash text COLLATE "C" REFERENCES contents (hash);
ALTER TABLE definitions ADD COLUMN resolved_hash text COLLATE "C" REFERENCES contents (hash);
ALTER TABLE nodes ADD COLUMN common_hash text COLLATE "C" REFERENCES contents (hash);

-- Contents that a row has stopped referring to. Pruning removes those that no row refers to. Triggers fill it, because
-- older programs remove rows, too.
CREATE TABLE contents_released (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    hash text COLLATE "C" NOT NULL
);
CREATE FUNCTION release_contents() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_TABLE_NAME = 'nodes' THEN
        INSERT INTO contents_released (hash) VALUES (OLD.common_hash);
    ELSE
        INSERT INTO contents_released (hash)
            SELECT hash FROM (VALUES (OLD.definition_hash), (OLD.resolved_hash)) AS old (hash) WHERE hash IS NOT NULL;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER definitions_release AFTER DELETE ON definitions FOR EACH ROW
    WHEN (OLD.definition_hash IS NOT NULL OR OLD.resolved_hash IS NOT NULL) EXECUTE FUNCTION release_contents();
CREATE TRIGGER nodes_release AFTER DELETE ON nodes FOR EACH ROW
    WHEN (OLD.common_hash IS NOT NULL) EXECUTE FUNCTION release_contents();
CREATE TRIGGER nodes_replace AFTER UPDATE OF common_hash ON nodes FOR EACH ROW
    WHEN (OLD.common_hash IS NOT NULL AND OLD.common_hash IS DISTINCT FROM NEW.common_hash)
    EXECUTE FUNCTION release_contents();
