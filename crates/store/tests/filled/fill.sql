-- Fills a store with `:rows` runs of one execution and two events each; all but the last 100 have ended. Every tenth
-- failed. A hundred jobs, a thousand nodes.
--
-- For both databases: `:numbers(N)` are the rows n from 1 to N, `:id(KIND, NUMBER)` is the id of a thing, and `:name(NUMBER)`
-- the id of a run.
INSERT INTO nodes (id, cluster, hostname, description)
    :numbers(1000)
    SELECT :id(1, n), (SELECT id FROM clusters), 'node-' || n,
           '{"hostname":"node-' || n || '","groups":[],"labels":{},"capabilities":{},"backends":[],"slots":4,"version":"1"}'
    FROM numbers;
INSERT INTO presence (node, session, status, draining, registered_at, seen_at)
    SELECT id, id, 0, false, 1, 1 FROM nodes;
INSERT INTO runs (id, cluster, job, state, submitted_by, created_at, started_at, finished_at, partial, owner, epoch,
                  steps, nodes)
    :numbers(:rows)
    SELECT :name(n), (SELECT id FROM clusters), 'job-' || n % 100,
           CASE WHEN n > :rows - 100 THEN 7 WHEN n % 10 = 0 THEN 11 ELSE 10 END, 'api', n * 1000, n * 1000,
           CASE WHEN n <= :rows - 100 THEN n * 1000 + 500 END, false, :id(2, 1), 1, 1, 0
    FROM numbers;
INSERT INTO definitions (run, definition, resolved)
    SELECT id, '{"tasks":[{"backend":"test","action":"noop"}]}', '{"nodes":[],"sets":[],"entries":[null]}' FROM runs;
INSERT INTO contents (hash, text) SELECT 'content-' || id, id FROM runs;
UPDATE definitions SET resolved_hash = 'content-' || run WHERE run LIKE '%0';
INSERT INTO executions (id, run, step, attempt, created_at, status, token, lease_node, session, granted_at, stop,
                        started_at, verdict, exit_code, finished_at, ended_at)
    :numbers(:rows)
    SELECT :id(3, n), :name(n), 0, CASE WHEN n % 10 = 1 THEN 2 ELSE 1 END, n * 1000,
           CASE WHEN n > :rows - 100 THEN 2 WHEN n % 10 = 0 THEN 4 ELSE 3 END, :id(4, n),
           :id(1, n % 1000 + 1), :id(1, n % 1000 + 1), n * 1000, false, n * 1000,
           CASE WHEN n > :rows - 100 THEN NULL WHEN n % 10 = 0 THEN 1 ELSE 0 END, 0, n * 1000 + 400,
           CASE WHEN n <= :rows - 100 THEN n * 1000 + 500 END
    FROM numbers;
UPDATE executions SET reused = id WHERE run LIKE '%2';
INSERT INTO events (seq, at, server, kind, run, data)
    :numbers(2 * :rows)
    SELECT n, n * 500, :id(2, 1), 'run_moved', :name((n + 1) / 2),
           '{"kind":"run_moved","run":"' || :name((n + 1) / 2) || '","epoch":1,"path":[],"at":"2026-01-01T00:00:00Z"}'
    FROM numbers;
UPDATE feed SET last_seq = 2 * :rows;
INSERT INTO output (execution, start_byte, stream, at, text) SELECT id, 0, 0, created_at, 'hello' FROM executions;
INSERT INTO cached (execution, cluster, cache_key, finished_at)
    SELECT id, (SELECT id FROM clusters), run, created_at FROM executions;
INSERT INTO limit_uses (execution, key, cluster, granted_at, until)
    SELECT id, 'db', (SELECT id FROM clusters), created_at, CASE WHEN status <> 2 THEN created_at END
    FROM executions;
