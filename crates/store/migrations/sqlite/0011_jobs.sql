-- Stored jobs. The id follows from cluster and name. A deleted job keeps its row: its numbers of versions are not used again.
CREATE TABLE jobs (
    id         BLOB PRIMARY KEY,
    cluster    BLOB NOT NULL REFERENCES clusters (id),
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    paused_at  INTEGER,
    -- All times of its schedules up to here are decided.
    decided_at INTEGER NOT NULL,
    deleted_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX jobs_of_cluster ON jobs (cluster);

-- The versions of a job, apart from its row, which each decision changes: definitions may be large.
CREATE TABLE job_versions (
    job        BLOB NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    version    INTEGER NOT NULL,
    hash       TEXT NOT NULL,
    applied_by TEXT NOT NULL,
    applied_at INTEGER NOT NULL,
    definition TEXT NOT NULL,
    PRIMARY KEY (job, version)
) STRICT;

-- The version of the stored job that a run runs. NULL: an inline definition.
ALTER TABLE runs ADD COLUMN job_version INTEGER;
