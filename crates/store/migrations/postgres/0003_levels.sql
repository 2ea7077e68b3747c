-- Which kinds of changes a server's program knows. Servers from before write none: they know the first level.
ALTER TABLE servers ADD COLUMN level integer NOT NULL DEFAULT 1;
