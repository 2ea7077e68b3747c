-- When the run entered its states and how long it stayed in each, as JSON; none before its first move, and if only older
-- programs moved it.
ALTER TABLE runs ADD COLUMN states TEXT;
