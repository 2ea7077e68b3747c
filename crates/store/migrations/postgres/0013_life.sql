-- The constraints and actions of a run so far, as JSON; none if it had none.
ALTER TABLE runs ADD COLUMN life text;
