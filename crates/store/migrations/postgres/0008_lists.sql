-- How many steps and nodes a run has, so that lists need not read its definition. NULL in rows of older
-- programs, until pruning fills them in.
-- The indexes of this schema are in postgres/indexes.rs: they are built while servers write.
ALTER TABLE runs ADD COLUMN steps integer;
ALTER TABLE runs ADD COLUMN nodes integer;

-- Identifies the request that used the idempotency key. NULL in rows of older programs: their keys match any request.
ALTER TABLE runs ADD COLUMN request_hash text;
