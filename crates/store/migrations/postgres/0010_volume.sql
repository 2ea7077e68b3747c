-- The bytes of all output, among the counts of `ended` (kind 3, code 0): adding them up would read every row. Triggers keep the
-- sum, because older programs write and remove output, too: one row for each statement, in `ended_lately`, as commits do.
CREATE FUNCTION count_output() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ended_lately (kind, code, total)
        SELECT 3, 0, CASE TG_OP WHEN 'INSERT' THEN sum(length(text)) ELSE -sum(length(text)) END
        FROM changed HAVING count(*) > 0;
    RETURN NULL;
END $$;
CREATE TRIGGER count_added_output AFTER INSERT ON output REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_output();
CREATE TRIGGER count_removed_output AFTER DELETE ON output REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_output();

-- Code 1: output from before is not in the sum. A server adds it later, because that reads the whole table.
INSERT INTO ended (kind, code, total) SELECT 3, 1, 1 WHERE EXISTS (SELECT 1 FROM output);

-- Output of ended runs up to this one, by their end and id, was removed because there was too much of it. At most one row.
CREATE TABLE output_removed (
    one         smallint PRIMARY KEY CHECK (one = 1),
    finished_at bigint NOT NULL,
    run         text COLLATE "C" NOT NULL
);
