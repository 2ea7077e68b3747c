-- Counts by status, and lists of a run's results by status and step. The id follows by itself.
CREATE INDEX executions_by_status ON executions (run, status, step);
-- Further attempts: they show which earlier attempts are not results. Few instances have any.
CREATE INDEX executions_again ON executions (run, step, pinned, item, attempt) WHERE attempt > 1;
-- Results that were reused.
CREATE INDEX executions_reused ON executions (run, status, step, cache_key) WHERE reused IS NOT NULL;
