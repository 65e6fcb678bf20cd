-- Statements about the jobs that keep the metric store in order.

-- name: take_the_look
-- One process looks at a time; the others find nothing to do. Held to the end of the transaction.
SELECT pg_try_advisory_xact_lock(hashtextextended('kalla.upkeep', 0)) AS ours;

-- name: under_way
-- Jobs that wait, run, or have failed lately, with the segments they name. A segment that cannot be
-- read is left alone for longer than one that met a server which was away.
WITH moment AS MATERIALIZED (SELECT kalla.clock() AS now),
known AS (
    SELECT type, status, payload FROM kalla.jobs
    WHERE status = 'pending' AND due AND queue = 'compact'
    UNION ALL
    SELECT type, status, payload FROM kalla.jobs
    WHERE status = 'pending' AND NOT due AND queue = 'compact'
    UNION ALL
    SELECT type, status, payload FROM kalla.jobs
    WHERE status = 'claimed' AND queue = 'compact'
    UNION ALL
    SELECT type, status, payload FROM kalla.jobs, moment
    WHERE finished_at > moment.now - make_interval(secs => %(pause_seconds)s)
      AND status IN ('failed', 'cancelled') AND queue = 'compact'
      AND (failures < max_attempts OR (payload ->> 'alone')::boolean
           OR finished_at > moment.now - make_interval(secs => %(short_seconds)s))
)
SELECT type, status, coalesce((payload ->> 'alone')::boolean, false) AS alone,
       jsonb_path_query_array(payload, '$.tasks[*][*].inputs[*].segment_id') AS segment_ids
FROM known WHERE type IN ('compact', 'retain');

-- name: forget_tasks
-- A busy store merges thousands of segments an hour, and jobs are kept for days: what is done need
-- not be listed any more.
UPDATE kalla.jobs SET payload = payload - 'tasks' - 'files' WHERE job_id = %(job_id)s;
