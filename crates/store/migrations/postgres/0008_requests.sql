-- Identifies the request that used the idempotency key. NULL in rows of older programs: their keys match any request.
ALTER TABLE runs ADD COLUMN request_hash text;
