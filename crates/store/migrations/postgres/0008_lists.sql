-- How many steps and nodes a run has, so that lists need not read its definition. NULL in rows of older programs.
-- The indexes of this schema are in postgres/indexes.rs: they are built while servers write.
ALTER TABLE runs ADD COLUMN steps integer;
ALTER TABLE runs ADD COLUMN nodes integer;

-- Identifies the request that used the idempotency key. NULL in rows of older programs: their keys match any request.
ALTER TABLE runs ADD COLUMN request_hash text;

-- Why and when the rest of a run was ended, other than by a person's request. NULL in rows of older programs.
ALTER TABLE runs ADD COLUMN stop_cause smallint;
ALTER TABLE runs ADD COLUMN stopped_at bigint;
