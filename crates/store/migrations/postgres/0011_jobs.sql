-- Stored jobs. The id follows from cluster and name. A deleted job keeps its row: its numbers of versions are not used again.
CREATE TABLE jobs (
    id         uuid PRIMARY KEY,
    cluster    uuid NOT NULL REFERENCES clusters (id),
    name       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    created_at bigint NOT NULL,
    paused_at  bigint,
    -- All times of its schedules up to here are decided.
    decided_at bigint NOT NULL,
    deleted_at bigint
);
CREATE INDEX jobs_of_cluster ON jobs (cluster);

-- The versions of a job, apart from its row, which each decision changes: definitions may be large.
CREATE TABLE job_versions (
    job        uuid NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    version    bigint NOT NULL,
    hash       text NOT NULL,
    applied_by text NOT NULL,
    applied_at bigint NOT NULL,
    definition text NOT NULL,
    PRIMARY KEY (job, version)
);

-- The version of the stored job that a run runs. NULL: an inline definition.
ALTER TABLE runs ADD COLUMN job_version bigint;
