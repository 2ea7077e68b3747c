-- Fills a store with `:rows` runs of one execution and two events each; all but the last 100 have ended. Every tenth
-- failed. A hundred jobs, a thousand nodes.
INSERT INTO nodes (id, cluster, hostname, description)
    SELECT md5('node' || n)::uuid, '0d0bea70-0000-7000-8000-000000000001', 'node-' || n,
           '{"hostname":"node-' || n || '","groups":[],"labels":{},"capabilities":{},"backends":[],"slots":4,"version":"1"}'
    FROM generate_series(0, 999) n;
INSERT INTO presence (node, session, status, draining, registered_at, seen_at)
    SELECT id, id, 0, false, 1, 1 FROM nodes;
INSERT INTO runs (id, cluster, job, state, submitted_by, created_at, started_at, finished_at, partial, owner, epoch,
                  steps, nodes)
    SELECT 'run-' || lpad(n::text, 7, '0'), '0d0bea70-0000-7000-8000-000000000001', 'job-' || n % 100,
           CASE WHEN n > :rows - 100 THEN 7 WHEN n % 10 = 0 THEN 11 ELSE 10 END, 'api', n * 1000, n * 1000,
           CASE WHEN n <= :rows - 100 THEN n * 1000 + 500 END, false, md5('server')::uuid, 1, 1, 0
    FROM generate_series(1, :rows) n;
INSERT INTO definitions (run, definition, resolved)
    SELECT id, '{"tasks":[{"backend":"test","action":"noop"}]}', '{"nodes":[],"sets":[],"entries":[null]}' FROM runs;
INSERT INTO contents (hash, text) SELECT 'content-' || id, id FROM runs;
UPDATE definitions SET resolved_hash = 'content-' || run WHERE right(run, 1) = '0';
INSERT INTO executions (id, run, step, attempt, created_at, status, token, lease_node, session, granted_at, stop,
                        started_at, verdict, exit_code, finished_at, ended_at)
    SELECT (lpad(to_hex(n), 12, '0') || substr(md5(n::text), 13))::uuid, 'run-' || lpad(n::text, 7, '0'), 0, 1, n * 1000,
           CASE WHEN n > :rows - 100 THEN 2 WHEN n % 10 = 0 THEN 4 ELSE 3 END, md5('token' || n)::uuid,
           md5('node' || n % 1000)::uuid, md5('node' || n % 1000)::uuid, n * 1000, false, n * 1000,
           CASE WHEN n > :rows - 100 THEN NULL WHEN n % 10 = 0 THEN 1 ELSE 0 END, 0, n * 1000 + 400,
           CASE WHEN n <= :rows - 100 THEN n * 1000 + 500 END
    FROM generate_series(1, :rows) n;
INSERT INTO events (seq, at, server, kind, run, data)
    SELECT n, n * 500, md5('server')::uuid, 'run_moved', 'run-' || lpad(((n + 1) / 2)::text, 7, '0'),
           '{"kind":"run_moved","run":"run-' || lpad(((n + 1) / 2)::text, 7, '0') || '","epoch":1,"path":[],"at":"2026-01-01T00:00:00Z"}'
    FROM generate_series(1, 2 * :rows) n;
INSERT INTO output (execution, start_byte, stream, at, text) SELECT id, 0, 0, created_at, 'hello' FROM executions;
INSERT INTO cached (execution, cluster, cache_key, finished_at)
    SELECT id, '0d0bea70-0000-7000-8000-000000000001', run, created_at FROM executions;
INSERT INTO limit_uses (execution, key, cluster, granted_at, until)
    SELECT id, 'db', '0d0bea70-0000-7000-8000-000000000001', created_at, CASE WHEN status <> 2 THEN created_at END
    FROM executions;
ANALYZE;
