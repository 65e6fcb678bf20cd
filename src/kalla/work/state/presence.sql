-- Which workers there are. For display and for confirming cancels; claims never rest on it.

-- name: announce
INSERT INTO kalla.workers (worker, host, pid, address, roles, concurrency, active, version, draining)
VALUES (%(worker)s, %(host)s, %(pid)s, %(address)s, %(roles)s, %(concurrency)s, %(active)s,
        %(version)s, %(draining)s)
ON CONFLICT (worker) DO UPDATE
SET active = excluded.active, draining = excluded.draining, seen_at = kalla.clock();

-- name: leave
DELETE FROM kalla.workers WHERE worker = %(worker)s;

-- name: list
SELECT workers.*, extract(epoch FROM kalla.clock() - seen_at)::double precision AS silent_seconds
FROM kalla.workers ORDER BY started_at, worker;

-- name: members
-- A pid alone may be another's: a container that starts anew has the same host and pids from 1. The
-- row of a killed worker is silent soon.
SELECT pid, concurrency,
       (SELECT count(*) FROM kalla.jobs
        WHERE jobs.worker = workers.worker AND jobs.status = 'claimed') AS jobs,
       (SELECT count(*) FROM kalla.leases
        WHERE leases.holder = workers.worker AND leases.until > kalla.clock()) AS slots
FROM kalla.workers
WHERE host = %(host)s AND pid = ANY(%(pids)s) AND NOT draining
  AND seen_at >= kalla.clock() - make_interval(secs => %(silent)s);

-- name: forget
DELETE FROM kalla.workers WHERE seen_at < kalla.clock() - make_interval(secs => %(seconds)s);
