-- How many steps and nodes a run has, so that lists need not read its definition. NULL in rows of older programs.
-- The indexes of this schema are in postgres/indexes.rs: they are built while servers write.
ALTER TABLE runs ADD COLUMN steps integer;
ALTER TABLE runs ADD COLUMN nodes integer;

-- Identifies the request that used the idempotency key. NULL in rows of older programs: their keys match any request.
ALTER TABLE runs ADD COLUMN request_hash text;

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
