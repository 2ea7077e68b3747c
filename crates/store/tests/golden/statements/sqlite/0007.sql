DELETE FROM cached WHERE execution IN (SELECT id FROM executions WHERE run = ?1 ORDER BY id LIMIT ?2)
DELETE FROM events WHERE seq < ?1
DELETE FROM executions WHERE id IN (SELECT id FROM executions WHERE run = ?1 ORDER BY id LIMIT ?2) RETURNING status
DELETE FROM holds WHERE node = ?1
DELETE FROM limit_uses WHERE (execution, key) IN (SELECT execution, key FROM limit_uses WHERE until <= ?1 ORDER BY until LIMIT ?2)
DELETE FROM limit_uses WHERE execution = ?1 AND until IS NULL
DELETE FROM limit_uses WHERE until IS NULL AND NOT EXISTS (SELECT 1 FROM executions e WHERE e.id = limit_uses.execution AND e.status IN (1, 2))
DELETE FROM nodes WHERE id = ?1
DELETE FROM output WHERE execution = ?1 AND start_byte < min(?2, ?3)
DELETE FROM output WHERE execution IN (SELECT id FROM executions WHERE run = ?1 ORDER BY id LIMIT ?2)
DELETE FROM runs WHERE id = ?1 RETURNING state
DELETE FROM servers WHERE id = ?1
DELETE FROM servers WHERE name = ?1 OR id = ?2
DELETE FROM tombstones WHERE at < ?1
INSERT INTO cached (execution, cluster, cache_key, finished_at) SELECT ?1, cluster, ?2, ?3 FROM runs WHERE id = ?4
INSERT INTO definitions (run, definition, resolved, params) VALUES (?1, ?2, ?3, ?4)
INSERT INTO ended (kind, code, total) VALUES (?1, ?2, ?3) ON CONFLICT (kind, code) DO UPDATE SET total = total + excluded.total
INSERT INTO events (seq, server, at, kind, run, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
INSERT INTO executions (id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused, item, limits, cache_key, failed_for_good) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, ?27)
INSERT INTO holds (node, run) VALUES (?1, ?2) ON CONFLICT (node) DO UPDATE SET run = excluded.run
INSERT INTO limit_uses (execution, key, cluster, granted_at, until) VALUES (?1, ?2, ?3, ?4, ?5)
INSERT INTO nodes (id, hostname, cluster, description, registration, problems) VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (id) DO UPDATE SET hostname = excluded.hostname, cluster = excluded.cluster, description = excluded.description, registration = excluded.registration, problems = excluded.problems
INSERT INTO output (execution, start_byte, stream, at, text) VALUES (?1, ?2, ?3, ?4, ?5)
INSERT INTO presence (node, session, status, draining, registered_at, seen_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (node) DO UPDATE SET session = excluded.session, status = excluded.status, draining = excluded.draining, registered_at = excluded.registered_at, seen_at = excluded.seen_at
INSERT INTO runs (id, state, started_at, finished_at, partial, error, cancel_requested_at, paused_at, admitted_at, owner, epoch, cluster, job, submitted_by, idempotency_key, created_at, retry_of, no_cache) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)
INSERT INTO servers (name, id, http, grpc, version, started_at, seen_at, level) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
INSERT INTO tombstones (node, session, cluster, hostname, at) SELECT ?1, ?2, coalesce(?3, n.cluster), coalesce(?4, n.hostname), ?5 FROM (SELECT 1) LEFT JOIN nodes n ON n.id = ?1 WHERE true ON CONFLICT (node, session) DO UPDATE SET at = excluded.at
SELECT (SELECT min(seq) FROM events), r.finished_at, r.id, (SELECT min(at) FROM tombstones) FROM (SELECT 1) one LEFT JOIN (SELECT finished_at, id FROM runs WHERE finished_at IS NOT NULL AND state IN (10, 11, 12) ORDER BY finished_at, id LIMIT 1) r ON true
SELECT 1 FROM executions WHERE id = ?1
SELECT EXISTS (SELECT 1 FROM holds)
SELECT EXISTS (SELECT 1 FROM tombstones WHERE node = ?1 AND session = ?2)
SELECT cluster FROM runs WHERE id = ?1
SELECT count(*) FROM executions
SELECT count(*) FROM executions WHERE coalesce(pinned, lease_node) = ?1
SELECT count(*) FROM executions WHERE run = ?1
SELECT count(*) FROM executions WHERE run = ?1 AND coalesce(pinned, lease_node) = ?2 AND step = ?3 AND status IN (0, 2)
SELECT count(*) FROM executions WHERE status IN (0, 2)
SELECT count(*) FROM executions WHERE step = ?1
SELECT count(*) FROM limit_uses WHERE cluster = ?1 AND key = ?2 AND granted_at > ?3 AND until > ?4
SELECT count(*) FROM limit_uses l JOIN executions e ON e.id = l.execution WHERE l.until IS NULL AND e.status IN (1, 2) AND l.cluster = ?1 AND l.key = ?2
SELECT count(*) FROM runs r
SELECT count(*) FROM runs r WHERE r.cluster = ?1
SELECT count(*) FROM runs r WHERE r.cluster = ?1 AND r.state IN (6) AND r.job = ?2
SELECT count(*) FROM runs r WHERE r.state IN (10)
SELECT count(*) FROM runs r WHERE r.state IN (12, 6)
SELECT h.node, h.run FROM holds h WHERE EXISTS (SELECT 1 FROM runs r WHERE r.id = h.run AND r.state NOT IN (10, 11, 12))
SELECT h.node, h.run FROM holds h WHERE EXISTS (SELECT 1 FROM runs r WHERE r.id = h.run AND r.state NOT IN (10, 11, 12)) AND h.node = ?1
SELECT h.node, h.run FROM holds h WHERE EXISTS (SELECT 1 FROM runs r WHERE r.id = h.run AND r.state NOT IN (10, 11, 12)) AND h.run = ?1
SELECT h.node, h.run FROM holds h WHERE EXISTS (SELECT 1 FROM runs r WHERE r.id = h.run AND r.state NOT IN (10, 11, 12)) ORDER BY h.node
SELECT id FROM clusters
SELECT id FROM clusters WHERE id = ?1 OR name = ?2 ORDER BY (id = ?1) IS TRUE DESC LIMIT 1
SELECT id FROM runs WHERE cluster = ?1 AND idempotency_key = ?2
SELECT id FROM runs WHERE finished_at < ?1 AND finished_at IS NOT NULL AND state IN (10, 11, 12) ORDER BY finished_at, id LIMIT ?2
SELECT id, owner FROM runs WHERE state NOT IN (10, 11, 12) ORDER BY created_at, id
SELECT id, state = 1 AND admitted_at IS NULL FROM runs WHERE state NOT IN (10, 11, 12) AND state > 0
SELECT id, state, started_at, finished_at, partial, error, cancel_requested_at, paused_at, admitted_at, owner, epoch FROM runs WHERE id = ?1
SELECT id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused, item, limits, cache_key, failed_for_good FROM executions
SELECT id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused, item, limits, cache_key, failed_for_good FROM executions ORDER BY id LIMIT 1 OFFSET 0
SELECT id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused, item, limits, cache_key, failed_for_good FROM executions WHERE coalesce(pinned, lease_node) = ?1 ORDER BY id LIMIT 1 OFFSET 0
SELECT id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused, item, limits, cache_key, failed_for_good FROM executions WHERE id = (SELECT c.execution FROM cached c JOIN executions e ON e.id = c.execution WHERE c.cluster = ?1 AND c.cache_key = ?2 ORDER BY c.finished_at DESC, c.execution DESC LIMIT 1)
SELECT id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused, item, limits, cache_key, failed_for_good FROM executions WHERE id = ?1
SELECT id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused, item, limits, cache_key, failed_for_good FROM executions WHERE lease_node = ?1 AND status <= 2 AND status >= 1
SELECT id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused, item, limits, cache_key, failed_for_good FROM executions WHERE lease_node = ?1 AND status <= 2 AND status >= 1 ORDER BY id
SELECT id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused, item, limits, cache_key, failed_for_good FROM executions WHERE run = ?1 AND coalesce(pinned, lease_node) = ?2 AND step = ?3 AND status IN (0, 2) ORDER BY id LIMIT 1 OFFSET 0
SELECT id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused, item, limits, cache_key, failed_for_good FROM executions WHERE run = ?1 ORDER BY id
SELECT id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused, item, limits, cache_key, failed_for_good FROM executions WHERE run = ?1 ORDER BY id LIMIT 1 OFFSET 0
SELECT id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused, item, limits, cache_key, failed_for_good FROM executions WHERE status <= 2 ORDER BY id
SELECT id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused, item, limits, cache_key, failed_for_good FROM executions WHERE status IN (0, 2) ORDER BY id LIMIT 1 OFFSET 0
SELECT id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused, item, limits, cache_key, failed_for_good FROM executions WHERE step = ?1 ORDER BY id LIMIT 1 OFFSET 0
SELECT l.execution, l.key, l.cluster, l.granted_at, l.until FROM limit_uses l WHERE l.until IS NOT NULL OR EXISTS (SELECT 1 FROM executions e WHERE e.id = l.execution AND e.status IN (1, 2)) ORDER BY l.cluster, l.key, l.granted_at, l.execution
SELECT last_seq FROM feed
SELECT node, session, cluster, hostname, at FROM tombstones
SELECT node, session, cluster, hostname, at FROM tombstones ORDER BY node, at, session
SELECT node, session, cluster, hostname, at FROM tombstones WHERE node = ?1 ORDER BY node, at, session
SELECT node, session, seen_at FROM presence ORDER BY node
SELECT node, session, status, draining, registered_at, seen_at FROM presence WHERE node = ?1
SELECT number, checksum, works_since, program FROM migrations
SELECT o.execution, o.start_byte, o.stream, o.at, o.text FROM output o ORDER BY execution, start_byte
SELECT o.execution, o.start_byte, o.stream, o.at, o.text FROM output o WHERE execution = ?1 AND start_byte >= coalesce((SELECT max(start_byte) FROM output WHERE execution = ?1 AND start_byte <= ?2), 0) AND start_byte + octet_length(text) > ?2 ORDER BY start_byte LIMIT ?3
SELECT o.execution, o.start_byte, o.stream, o.at, o.text FROM output o WHERE execution = ?1 ORDER BY start_byte DESC LIMIT ?2
SELECT p.node, p.session, p.status, p.draining, p.registered_at, p.seen_at, n.cluster, n.description, n.registration, n.problems FROM presence p JOIN nodes n ON n.id = p.node
SELECT p.node, p.session, p.status, p.draining, p.registered_at, p.seen_at, n.cluster, n.description, n.registration, n.problems FROM presence p JOIN nodes n ON n.id = p.node ORDER BY n.hostname, n.id
SELECT p.node, p.session, p.status, p.draining, p.registered_at, p.seen_at, n.cluster, n.description, n.registration, n.problems FROM presence p JOIN nodes n ON n.id = p.node WHERE n.cluster = ?1 ORDER BY n.hostname, n.id
SELECT p.node, p.session, p.status, p.draining, p.registered_at, p.seen_at, n.cluster, n.description, n.registration, n.problems FROM presence p JOIN nodes n ON n.id = p.node WHERE n.id = ?1
SELECT p.node, p.session, p.status, p.draining, p.registered_at, p.seen_at, n.cluster, n.description, n.registration, n.problems FROM presence p JOIN nodes n ON n.id = p.node WHERE p.status <> ?1 AND p.seen_at < ?2 ORDER BY n.hostname, n.id
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, r.retry_of, r.no_cache, d.definition, d.resolved, d.params FROM runs r JOIN definitions d ON d.run = r.id
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, r.retry_of, r.no_cache, d.definition, d.resolved, d.params FROM runs r JOIN definitions d ON d.run = r.id ORDER BY r.created_at DESC, r.id DESC LIMIT 1 OFFSET 0
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, r.retry_of, r.no_cache, d.definition, d.resolved, d.params FROM runs r JOIN definitions d ON d.run = r.id WHERE r.cluster = ?1 AND r.state IN (6) AND r.job = ?2 ORDER BY r.created_at DESC, r.id DESC LIMIT 1 OFFSET 0
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, r.retry_of, r.no_cache, d.definition, d.resolved, d.params FROM runs r JOIN definitions d ON d.run = r.id WHERE r.cluster = ?1 ORDER BY r.created_at DESC, r.id DESC LIMIT 1 OFFSET 0
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, r.retry_of, r.no_cache, d.definition, d.resolved, d.params FROM runs r JOIN definitions d ON d.run = r.id WHERE r.id = ?1
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, r.retry_of, r.no_cache, d.definition, d.resolved, d.params FROM runs r JOIN definitions d ON d.run = r.id WHERE r.state IN (10) ORDER BY r.created_at DESC, r.id DESC LIMIT 1 OFFSET 0
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, r.retry_of, r.no_cache, d.definition, d.resolved, d.params FROM runs r JOIN definitions d ON d.run = r.id WHERE r.state IN (12, 6) ORDER BY r.created_at DESC, r.id DESC LIMIT 1 OFFSET 0
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, r.retry_of, r.no_cache, d.definition, d.resolved, d.params FROM runs r JOIN definitions d ON d.run = r.id WHERE r.state NOT IN (10, 11, 12) ORDER BY r.created_at, r.id
SELECT s.name, s.id, s.http, s.grpc, s.version, s.started_at, s.seen_at, s.level FROM servers s ORDER BY name
SELECT seq, server, at, kind, run, data FROM events ORDER BY seq
SELECT seq, server, at, kind, run, data FROM events WHERE run = ?3 AND seq > ?1 ORDER BY seq LIMIT ?2
SELECT seq, server, at, kind, run, data FROM events WHERE seq > ?1 ORDER BY seq LIMIT ?2
SELECT start_byte + octet_length(text) FROM output WHERE execution = ?1 ORDER BY start_byte DESC LIMIT 1
SELECT state, count(*) FROM runs WHERE state NOT IN (10, 11, 12) GROUP BY state UNION ALL SELECT code, total FROM ended WHERE kind = 2 AND total > 0 ORDER BY 1
SELECT status, count(*) FROM executions WHERE status <= 2 GROUP BY status UNION ALL SELECT code, total FROM ended WHERE kind = 1 AND total > 0 ORDER BY 1
SELECT status, count(*) FROM presence GROUP BY status ORDER BY status
SELECT status, count(*), max(granted_at), max(finished_at) FROM executions WHERE coalesce(pinned, lease_node) = ?1 AND reused IS NULL GROUP BY status ORDER BY status
UPDATE executions SET failed_for_good = ?2 WHERE id = ?1
UPDATE executions SET status = ?2, not_before = ?3, stop = ?4, started_at = ?5, verdict = ?6, exit_code = ?7, error = ?8, finished_at = ?9, reason = ?10, ended_at = ?11, outputs = ?12 WHERE id = ?1
UPDATE executions SET status = ?2, not_before = ?3, token = ?4, lease_node = ?5, session = ?6, granted_at = ?7, stop = ?8, started_at = ?9, verdict = ?10, exit_code = ?11, error = ?12, finished_at = ?13, reason = ?14, ended_at = ?15, outputs = ?16 WHERE id = ?1
UPDATE feed SET last_seq = last_seq + ?1 RETURNING last_seq
UPDATE nodes SET problems = ?2 WHERE id = ?1
UPDATE presence SET seen_at = max(seen_at, ?3) WHERE node = ?1 AND session = ?2
UPDATE presence SET status = ?2, draining = ?3 WHERE node = ?1
UPDATE runs SET state = ?2, started_at = ?3, finished_at = ?4, partial = ?5, error = ?6, cancel_requested_at = ?7, paused_at = ?8, admitted_at = ?9, owner = ?10, epoch = ?11 WHERE id = ?1
WITH front AS (SELECT seq, at FROM events ORDER BY seq LIMIT ?2) SELECT coalesce(min(seq) FILTER (WHERE at >= ?1), max(seq) + 1) FROM front
