-- The bytes of all output, among the counts of `ended` (kind 3): adding them up would read every row. Triggers keep the sum,
-- because older programs write and remove output, too.
INSERT INTO ended (kind, code, total)
    SELECT 3, 0, sum(octet_length(text)) FROM output HAVING count(*) > 0;
CREATE TRIGGER count_added_output AFTER INSERT ON output
BEGIN
    INSERT INTO ended (kind, code, total) VALUES (3, 0, octet_length(NEW.text))
        ON CONFLICT (kind, code) DO UPDATE SET total = total + excluded.total;
END;
CREATE TRIGGER count_removed_output AFTER DELETE ON output
BEGIN
    INSERT INTO ended (kind, code, total) VALUES (3, 0, -octet_length(OLD.text))
        ON CONFLICT (kind, code) DO UPDATE SET total = total + excluded.total;
END;

-- Output of ended runs up to this one, by their end and id, was removed because there was too much of it. At most one row.
CREATE TABLE output_removed (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    finished_at INTEGER NOT NULL,
    run         TEXT NOT NULL
) STRICT;
