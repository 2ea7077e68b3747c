DELETE FROM holds WHERE node = ANY($1)
DELETE FROM output o USING unnest($1::uuid[], $2::bigint[]) AS u (execution, keep_from) WHERE o.execution = u.execution AND o.start_byte < u.keep_from
DELETE FROM servers WHERE id = $1
DELETE FROM servers WHERE name = $1 OR id = $2
INSERT INTO definitions (run, definition, resolved, params) SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
INSERT INTO ended_lately (kind, code, total) SELECT * FROM unnest($1::smallint[], $2::smallint[], $3::bigint[])
INSERT INTO executions (id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, run, step, pinned, attempt, created_at, params, reused) SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::bigint[], $4::uuid[], $5::uuid[], $6::uuid[], $7::bigint[], $8::boolean[], $9::bigint[], $10::smallint[], $11::integer[], $12::text[], $13::bigint[], $14::text[], $15::bigint[], $16::text[], $17::text[], $18::integer[], $19::uuid[], $20::integer[], $21::bigint[], $22::text[], $23::uuid[])
INSERT INTO holds (node, run) SELECT * FROM unnest($1::uuid[], $2::text[]) ON CONFLICT (node) DO UPDATE SET run = excluded.run
INSERT INTO nodes (id, cluster, hostname, description) SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[]) ON CONFLICT (id) DO UPDATE SET cluster = excluded.cluster, hostname = excluded.hostname, description = excluded.description
INSERT INTO output (execution, start_byte, stream, at, text) SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bytea[])
INSERT INTO presence (node, session, status, draining, registered_at, seen_at) SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::boolean[], $5::bigint[], $6::bigint[]) ON CONFLICT (node) DO UPDATE SET session = excluded.session, status = excluded.status, draining = excluded.draining, registered_at = excluded.registered_at, seen_at = excluded.seen_at
INSERT INTO runs (id, state, started_at, finished_at, partial, error, cancel_requested_at, paused_at, admitted_at, owner, epoch, cluster, job, submitted_by, idempotency_key, created_at, retry_of) SELECT * FROM unnest($1::text[], $2::smallint[], $3::bigint[], $4::bigint[], $5::boolean[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[], $10::uuid[], $11::bigint[], $12::uuid[], $13::text[], $14::text[], $15::text[], $16::bigint[], $17::text[])
INSERT INTO servers (id, name, http, grpc, version, started_at, seen_at, level) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (name) DO UPDATE SET id = excluded.id, http = excluded.http, grpc = excluded.grpc, version = excluded.version, started_at = excluded.started_at, seen_at = excluded.seen_at, level = excluded.level
SELECT (SELECT min(seq) FROM events), r.finished_at, r.id FROM (SELECT 1) one LEFT JOIN (SELECT finished_at, id FROM runs WHERE finished_at IS NOT NULL AND state IN (10, 11, 12) ORDER BY finished_at, id LIMIT 1) r ON true
SELECT 1 FROM feed WHERE one = 1 FOR UPDATE
SELECT count(*) FILTER (WHERE state = 1 AND admitted_at IS NULL), count(*) FILTER (WHERE state > 1 OR admitted_at IS NOT NULL) FROM runs WHERE state NOT IN (10, 11, 12) AND state > 0 AND id <> ALL($1)
SELECT count(*) FROM executions
SELECT count(*) FROM executions WHERE coalesce(pinned, lease_node) = $1
SELECT count(*) FROM executions WHERE run = $1
SELECT count(*) FROM executions WHERE run = $1 AND coalesce(pinned, lease_node) = $2 AND step = $3 AND status IN (0, 2)
SELECT count(*) FROM executions WHERE status IN (0, 2)
SELECT count(*) FROM executions WHERE step = $1
SELECT count(*) FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = 'migrations' AND column_name IN ('works_since', 'program')
SELECT count(*) FROM runs r
SELECT count(*) FROM runs r WHERE r.cluster = $1
SELECT count(*) FROM runs r WHERE r.cluster = $1 AND r.state IN (6) AND r.job = $2
SELECT count(*) FROM runs r WHERE r.state IN (10)
SELECT count(*) FROM runs r WHERE r.state IN (12, 6)
SELECT e.id, coalesce((SELECT o.start_byte + length(o.text) FROM output o WHERE o.execution = e.id ORDER BY o.start_byte DESC LIMIT 1), 0) FROM executions e WHERE e.id = ANY($1) ORDER BY e.id FOR NO KEY UPDATE OF e
SELECT greatest((SELECT last_seq FROM feed WHERE one = 1), (SELECT max(seq) FROM events))
SELECT h.node, h.run FROM holds h WHERE EXISTS (SELECT 1 FROM runs r WHERE r.id = h.run AND r.state NOT IN (10, 11, 12))
SELECT h.node, h.run FROM holds h WHERE EXISTS (SELECT 1 FROM runs r WHERE r.id = h.run AND r.state NOT IN (10, 11, 12)) AND (h.node = ANY($1) OR h.run = ANY($2))
SELECT h.node, h.run FROM holds h WHERE EXISTS (SELECT 1 FROM runs r WHERE r.id = h.run AND r.state NOT IN (10, 11, 12)) ORDER BY h.node
SELECT id FROM clusters
SELECT id FROM clusters WHERE id = $1 OR name = $2 ORDER BY (id = $1) IS TRUE DESC LIMIT 1
SELECT id FROM runs WHERE finished_at < $1 AND finished_at IS NOT NULL AND state IN (10, 11, 12) ORDER BY finished_at, id LIMIT $2
SELECT id, name, http, grpc, version, started_at, seen_at, level FROM servers ORDER BY name
SELECT id, owner FROM runs WHERE state NOT IN (10, 11, 12) ORDER BY created_at, id
SELECT id, run, step, pinned, attempt, created_at, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, params, reused FROM executions
SELECT id, run, step, pinned, attempt, created_at, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, params, reused FROM executions ORDER BY id LIMIT 1 OFFSET 0
SELECT id, run, step, pinned, attempt, created_at, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, params, reused FROM executions WHERE coalesce(pinned, lease_node) = $1 ORDER BY id LIMIT 1 OFFSET 0
SELECT id, run, step, pinned, attempt, created_at, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, params, reused FROM executions WHERE id = $1
SELECT id, run, step, pinned, attempt, created_at, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, params, reused FROM executions WHERE id = ANY($1) ORDER BY id FOR UPDATE
SELECT id, run, step, pinned, attempt, created_at, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, params, reused FROM executions WHERE lease_node = $1 AND status <= 2 AND status >= 1 ORDER BY id
SELECT id, run, step, pinned, attempt, created_at, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, params, reused FROM executions WHERE lease_node = ANY($1) AND status <= 2 AND status >= 1
SELECT id, run, step, pinned, attempt, created_at, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, params, reused FROM executions WHERE run = $1 AND coalesce(pinned, lease_node) = $2 AND step = $3 AND status IN (0, 2) ORDER BY id LIMIT 1 OFFSET 0
SELECT id, run, step, pinned, attempt, created_at, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, params, reused FROM executions WHERE run = $1 ORDER BY id
SELECT id, run, step, pinned, attempt, created_at, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, params, reused FROM executions WHERE run = $1 ORDER BY id LIMIT 1 OFFSET 0
SELECT id, run, step, pinned, attempt, created_at, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, params, reused FROM executions WHERE status <= 2 ORDER BY id
SELECT id, run, step, pinned, attempt, created_at, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, params, reused FROM executions WHERE status IN (0, 2) ORDER BY id LIMIT 1 OFFSET 0
SELECT id, run, step, pinned, attempt, created_at, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs, params, reused FROM executions WHERE step = $1 ORDER BY id LIMIT 1 OFFSET 0
SELECT id, state, started_at, finished_at, partial, error, cancel_requested_at, paused_at, admitted_at, owner, epoch FROM runs WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE
SELECT node, session, seen_at FROM presence ORDER BY node
SELECT node, session, status, draining, registered_at, seen_at FROM presence WHERE node = ANY($1) ORDER BY node FOR UPDATE
SELECT number, checksum, works_since, program FROM migrations
SELECT o.start_byte, o.stream, o.at, o.text, o.execution FROM unnest($1::uuid[], $2::bigint[]) AS u (execution, from_byte) CROSS JOIN LATERAL (SELECT * FROM output o WHERE o.execution = u.execution AND o.start_byte >= coalesce((SELECT max(start_byte) FROM output WHERE execution = u.execution AND start_byte <= u.from_byte), 0) AND o.start_byte + length(o.text) > u.from_byte ORDER BY o.start_byte LIMIT $3) o ORDER BY o.execution, o.start_byte LIMIT $3
SELECT p.node, p.session, p.status, p.draining, p.registered_at, p.seen_at, n.cluster, n.description FROM presence p JOIN nodes n ON n.id = p.node
SELECT p.node, p.session, p.status, p.draining, p.registered_at, p.seen_at, n.cluster, n.description FROM presence p JOIN nodes n ON n.id = p.node ORDER BY n.hostname, n.id
SELECT p.node, p.session, p.status, p.draining, p.registered_at, p.seen_at, n.cluster, n.description FROM presence p JOIN nodes n ON n.id = p.node WHERE n.cluster = $1 ORDER BY n.hostname, n.id
SELECT p.node, p.session, p.status, p.draining, p.registered_at, p.seen_at, n.cluster, n.description FROM presence p JOIN nodes n ON n.id = p.node WHERE n.id = $1
SELECT p.node, p.session, p.status, p.draining, p.registered_at, p.seen_at, n.cluster, n.description FROM presence p JOIN nodes n ON n.id = p.node WHERE p.status <> $1 AND p.seen_at < $2 ORDER BY n.hostname, n.id
SELECT pg_advisory_xact_lock($1)
SELECT pg_current_xact_id()::text
SELECT pg_notify('downbeat', $1)
SELECT pg_xact_status($1::text::xid8)
SELECT r.cluster, r.idempotency_key, r.id FROM unnest($1::uuid[], $2::text[]) AS k (cluster, key) JOIN runs r ON r.cluster = k.cluster AND r.idempotency_key = k.key
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, d.definition, d.resolved, d.params, r.retry_of FROM runs r JOIN definitions d ON d.run = r.id
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, d.definition, d.resolved, d.params, r.retry_of FROM runs r JOIN definitions d ON d.run = r.id ORDER BY r.created_at DESC, r.id DESC LIMIT 1 OFFSET 0
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, d.definition, d.resolved, d.params, r.retry_of FROM runs r JOIN definitions d ON d.run = r.id WHERE r.cluster = $1 AND r.state IN (6) AND r.job = $2 ORDER BY r.created_at DESC, r.id DESC LIMIT 1 OFFSET 0
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, d.definition, d.resolved, d.params, r.retry_of FROM runs r JOIN definitions d ON d.run = r.id WHERE r.cluster = $1 ORDER BY r.created_at DESC, r.id DESC LIMIT 1 OFFSET 0
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, d.definition, d.resolved, d.params, r.retry_of FROM runs r JOIN definitions d ON d.run = r.id WHERE r.id = $1
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, d.definition, d.resolved, d.params, r.retry_of FROM runs r JOIN definitions d ON d.run = r.id WHERE r.state IN (10) ORDER BY r.created_at DESC, r.id DESC LIMIT 1 OFFSET 0
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, d.definition, d.resolved, d.params, r.retry_of FROM runs r JOIN definitions d ON d.run = r.id WHERE r.state IN (12, 6) ORDER BY r.created_at DESC, r.id DESC LIMIT 1 OFFSET 0
SELECT r.id, r.state, r.started_at, r.finished_at, r.partial, r.error, r.cancel_requested_at, r.paused_at, r.admitted_at, r.owner, r.epoch, r.cluster, r.job, r.submitted_by, r.idempotency_key, r.created_at, d.definition, d.resolved, d.params, r.retry_of FROM runs r JOIN definitions d ON d.run = r.id WHERE r.state NOT IN (10, 11, 12) ORDER BY r.created_at, r.id
SELECT seq, at, server, kind, run, data FROM events ORDER BY seq
SELECT seq, at, server, kind, run, data FROM events WHERE run = $3 AND seq > $1 ORDER BY seq LIMIT $2
SELECT seq, at, server, kind, run, data FROM events WHERE seq > $1 ORDER BY seq LIMIT $2
SELECT seq, data FROM events WHERE server = $1 ORDER BY seq DESC LIMIT 1
SELECT start_byte, stream, at, text FROM output WHERE execution = $1 AND start_byte >= coalesce((SELECT max(start_byte) FROM output WHERE execution = $1 AND start_byte <= $2), 0) AND start_byte + length(text) > $2 ORDER BY start_byte LIMIT $3
SELECT start_byte, stream, at, text, execution FROM output ORDER BY execution, start_byte
SELECT state, count(*) FROM runs WHERE state NOT IN (10, 11, 12) GROUP BY state UNION ALL SELECT code, sum(total)::bigint FROM (SELECT code, total FROM ended WHERE kind = 2 UNION ALL SELECT code, total FROM ended_lately WHERE kind = 2) e GROUP BY code HAVING sum(total) > 0 ORDER BY 1
SELECT status, count(*) FROM executions WHERE status <= 2 GROUP BY status UNION ALL SELECT code, sum(total)::bigint FROM (SELECT code, total FROM ended WHERE kind = 1 UNION ALL SELECT code, total FROM ended_lately WHERE kind = 1) e GROUP BY code HAVING sum(total) > 0 ORDER BY 1
SELECT status, count(*) FROM presence GROUP BY status ORDER BY status
UPDATE executions e SET status = u.status, not_before = u.not_before, token = u.token, lease_node = u.lease_node, session = u.session, granted_at = u.granted_at, stop = u.stop, started_at = u.started_at, verdict = u.verdict, exit_code = u.exit_code, error = u.error, finished_at = u.finished_at, reason = u.reason, ended_at = u.ended_at, outputs = u.outputs FROM unnest($1::uuid[], $2::smallint[], $3::bigint[], $4::uuid[], $5::uuid[], $6::uuid[], $7::bigint[], $8::boolean[], $9::bigint[], $10::smallint[], $11::integer[], $12::text[], $13::bigint[], $14::text[], $15::bigint[], $16::text[]) AS u (id, status, not_before, token, lease_node, session, granted_at, stop, started_at, verdict, exit_code, error, finished_at, reason, ended_at, outputs) WHERE e.id = u.id
UPDATE feed SET last_seq = last_seq WHERE one = 1
UPDATE presence p SET status = u.status, draining = u.draining FROM unnest($1::uuid[], $2::smallint[], $3::boolean[]) AS u (node, status, draining) WHERE p.node = u.node
UPDATE runs r SET state = u.state, started_at = u.started_at, finished_at = u.finished_at, partial = u.partial, error = u.error, cancel_requested_at = u.cancel_requested_at, paused_at = u.paused_at, admitted_at = u.admitted_at, owner = u.owner, epoch = u.epoch FROM unnest($1::text[], $2::smallint[], $3::bigint[], $4::bigint[], $5::boolean[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[], $10::uuid[], $11::bigint[]) AS u (id, state, started_at, finished_at, partial, error, cancel_requested_at, paused_at, admitted_at, owner, epoch) WHERE r.id = u.id
WITH front AS (SELECT seq, at FROM events ORDER BY seq LIMIT $2) DELETE FROM events WHERE seq < (SELECT coalesce(min(seq) FILTER (WHERE at >= $1), max(seq) + 1) FROM front)
WITH gone AS (DELETE FROM ended_lately RETURNING kind, code, total) INSERT INTO ended AS e (kind, code, total) SELECT kind, code, sum(total) FROM gone GROUP BY kind, code ON CONFLICT (kind, code) DO UPDATE SET total = e.total + excluded.total
WITH gone AS (DELETE FROM executions WHERE id IN (SELECT id FROM executions WHERE run = $1 ORDER BY id LIMIT $2 FOR UPDATE) RETURNING id, status), texts AS (DELETE FROM output o USING gone WHERE o.execution = gone.id), fewer AS (INSERT INTO ended_lately (kind, code, total) SELECT 1, status, -count(*) FROM gone GROUP BY status) SELECT count(*) FROM gone
WITH gone AS (DELETE FROM runs WHERE id = $1 RETURNING state), fewer AS (INSERT INTO ended_lately (kind, code, total) SELECT 2, state, -1 FROM gone) SELECT count(*) FROM gone
WITH last AS (SELECT greatest((SELECT last_seq FROM feed WHERE one = 1), (SELECT max(seq) FROM events)) AS seq), recorded AS (INSERT INTO events (seq, server, at, kind, run, data) SELECT last.seq + u.place, $1::uuid, u.at, u.kind, u.run, u.data FROM last, unnest($2::bigint[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY AS u (at, kind, run, data, place)) SELECT seq FROM last
WITH seen AS (SELECT p.node, p.session FROM presence p WHERE (p.node, p.session) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[])) ORDER BY p.node FOR UPDATE) UPDATE presence p SET seen_at = greatest(p.seen_at, $3) FROM seen WHERE p.node = seen.node RETURNING p.node, p.session
