-- Its place among the items of its task, what it takes one of while it is leased, and the name of what went into it.
ALTER TABLE executions ADD COLUMN item INTEGER;
ALTER TABLE executions ADD COLUMN limits TEXT;
ALTER TABLE executions ADD COLUMN cache_key TEXT;

-- Nothing is taken from the cache.
ALTER TABLE runs ADD COLUMN no_cache INTEGER NOT NULL DEFAULT 0;

-- Executions that were carried out and succeeded, by what went into them. A table of its own and no index of
-- `executions`: making one would read all of them. A row of an execution that is gone counts for nothing.
CREATE TABLE cached (
    execution   BLOB PRIMARY KEY,
    cluster     BLOB NOT NULL,
    cache_key   TEXT NOT NULL,
    finished_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX cached_by_key ON cached (cluster, cache_key, finished_at);

-- Who has a place of a limit. One of a number at once has no `until`: it counts for as long as its execution is leased
-- or runs, so that what a program from before leaves behind counts for nothing. One of a rate counts until then.
CREATE TABLE limit_uses (
    execution  BLOB NOT NULL,
    key        TEXT NOT NULL,
    cluster    BLOB NOT NULL,
    granted_at INTEGER NOT NULL,
    until      INTEGER,
    PRIMARY KEY (execution, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX limit_uses_by_key ON limit_uses (cluster, key, granted_at);
CREATE INDEX limit_uses_by_end ON limit_uses (until) WHERE until IS NOT NULL;
