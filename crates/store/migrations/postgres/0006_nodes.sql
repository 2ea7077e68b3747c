-- What the session in `presence` said when it registered, beside its description: JSON that names the session, since a
-- program from before registers without it. And what is wrong on the host, as its agent says: a JSON array of texts.
ALTER TABLE nodes ADD COLUMN registration text;
ALTER TABLE nodes ADD COLUMN problems text;

-- Nodes that were deleted, with the session that each had then. That session is told so; a new one registers anew.
CREATE TABLE tombstones (
    node     uuid NOT NULL,
    session  uuid NOT NULL,
    cluster  uuid NOT NULL,
    hostname text COLLATE "C" NOT NULL,
    at       bigint NOT NULL,
    PRIMARY KEY (node, session)
);
CREATE INDEX tombstones_by_age ON tombstones (at);
