-- What the session in `presence` said when it registered, beside its description: JSON that names the session, since a
-- program from before registers without it. And what is wrong on the host, as its agent says: a JSON array of texts.
ALTER TABLE nodes ADD COLUMN registration TEXT;
ALTER TABLE nodes ADD COLUMN problems TEXT;

-- Nodes that were deleted, with the session that each had then. That session is told so; a new one registers anew.
CREATE TABLE tombstones (
    node     BLOB NOT NULL,
    session  BLOB NOT NULL,
    cluster  BLOB NOT NULL,
    hostname TEXT NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (node, session)
) STRICT, WITHOUT ROWID;
CREATE INDEX tombstones_by_age ON tombstones (at);
