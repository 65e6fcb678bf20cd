-- What lists show of jobs. Reading only: the statements that move jobs are kalla.work's.

-- name: jobs
-- Newest first, without payload, result and traceback: a list is asked for every second.
SELECT job_id, type, queue, status, priority, run_id, failures, max_attempts, worker, created_at,
       run_after, claimed_at, finished_at, stopped_at, progress, left(error, 500) AS error,
       (SELECT name FROM kalla.reconciliations c
        WHERE c.run_id = CASE WHEN type = 'tidy' THEN (payload ->> 'run_id')::bigint
                              ELSE jobs.run_id END) AS recipe
FROM kalla.jobs
WHERE (%(status)s::text IS NULL OR status = %(status)s)
  AND (%(queue)s::text IS NULL OR queue = %(queue)s)
  AND (%(type)s::text IS NULL OR type = %(type)s)
  AND (%(run_id)s::bigint IS NULL OR run_id = %(run_id)s)
  AND (%(before)s::bigint IS NULL OR job_id < %(before)s)
  AND (%(upkeep)s OR type <> ALL(%(upkeep_types)s::text[]))
ORDER BY job_id DESC
LIMIT %(limit)s;

-- name: migrations
SELECT name FROM kalla.migrations;
