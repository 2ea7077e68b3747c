-- Its place among the items of its task, what it takes one of while it is leased, and the name of what went into it.
ALTER TABLE executions ADD COLUMN item integer;
ALTER TABLE executions ADD COLUMN limits text;
ALTER TABLE executions ADD COLUMN cache_key text COLLATE "C";

-- Nothing is taken from the cache.
ALTER TABLE runs ADD COLUMN no_cache boolean NOT NULL DEFAULT false;

-- Executions that were carried out and succeeded, by what went into them. A table of its own and no index of
-- `executions`: making one would read all of them while everybody waits. A row of an execution that is gone counts for
-- nothing.
CREATE TABLE cached (
    execution   uuid PRIMARY KEY,
    cluster     uuid NOT NULL,
    cache_key   text COLLATE "C" NOT NULL,
    finished_at bigint NOT NULL
);
CREATE INDEX cached_by_key ON cached (cluster, cache_key, finished_at, execution);

-- Who has a place of a limit. One of a number at once has no `until`: it counts for as long as its execution is leased
-- or runs, so that what a program from before leaves behind counts for nothing. One of a rate counts until then.
CREATE TABLE limit_uses (
    execution  uuid NOT NULL,
    key        text COLLATE "C" NOT NULL,
    cluster    uuid NOT NULL,
    granted_at bigint NOT NULL,
    until      bigint,
    PRIMARY KEY (execution, key)
);
CREATE INDEX limit_uses_by_key ON limit_uses (cluster, key, granted_at);
CREATE INDEX limit_uses_by_end ON limit_uses (until) WHERE until IS NOT NULL;
