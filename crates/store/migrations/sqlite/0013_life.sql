-- Rounds: the attempts of a whole run, and the round to which an execution belongs. The results of a run are those of its last
-- round.
ALTER TABLE runs ADD COLUMN round INTEGER NOT NULL DEFAULT 1;
ALTER TABLE executions ADD COLUMN round INTEGER NOT NULL DEFAULT 1;
-- The constraints and actions of a run so far, as JSON; none if it had none.
ALTER TABLE runs ADD COLUMN life TEXT;
