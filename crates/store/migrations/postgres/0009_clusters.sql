-- Clusters as records with versions. Older programs know only the cluster `default`: its row gets the defaults, which are
-- those of a cluster without standing tasks.
-- The indexes of this schema are in postgres/indexes.rs: they are built while servers write.
ALTER TABLE clusters ADD COLUMN description text NOT NULL DEFAULT '';
ALTER TABLE clusters ADD COLUMN on_register smallint NOT NULL DEFAULT 0;
ALTER TABLE clusters ADD COLUMN version bigint NOT NULL DEFAULT 1;
ALTER TABLE clusters ADD COLUMN updated_at bigint NOT NULL DEFAULT 0;
-- When it was deleted. From then on its name is its id with a colon before it, which no cluster can be named, until all rows
-- of the cluster are removed, this one last.
ALTER TABLE clusters ADD COLUMN deleted_at bigint;
-- No event up to this number is about the cluster, or is any more. NULL: none was checked.
ALTER TABLE clusters ADD COLUMN checked_seq bigint;
-- The standing tasks, as JSON.
ALTER TABLE clusters ADD COLUMN list text NOT NULL DEFAULT '{}';
