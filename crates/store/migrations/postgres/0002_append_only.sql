-- Numbers come from the events themselves, under the lock of the one row of `feed`, which is no longer rewritten by
-- every commit: while anybody holds a transaction open, each rewriting leaves a dead row that every later commit would
-- have to pass. A server of the first schema still raises `last_seq`: it gets numbers behind all others.
CREATE FUNCTION feed_follows_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.last_seq := NEW.last_seq - OLD.last_seq + greatest(OLD.last_seq, (SELECT max(seq) FROM events));
    RETURN NEW;
END $$;
CREATE TRIGGER feed_follows_events BEFORE UPDATE ON feed FOR EACH ROW EXECUTE FUNCTION feed_follows_events();

-- For the same reason counts are appended here, and added up in `ended` now and then.
CREATE TABLE ended_lately (
    kind  smallint NOT NULL,
    code  smallint NOT NULL,
    total bigint NOT NULL
);
