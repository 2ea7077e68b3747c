-- Why the instance failed for good, on its last execution. NULL in rows of older programs, which do not record it.
ALTER TABLE executions ADD COLUMN failed_for_good TEXT;
