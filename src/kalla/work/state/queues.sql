-- Statements about queues as a whole: how deep, how old, paused or not.

-- name: depths
-- What the scalers read. A delayed job does not wait yet, and a paused queue still has its depth.
WITH moment AS MATERIALIZED (SELECT kalla.clock() AS now),
waiting AS (
    SELECT queue, count(*) AS depth,
           extract(epoch FROM moment.now - min(run_after))::double precision AS oldest_wait_seconds
    FROM kalla.jobs, moment WHERE status = 'pending' AND due GROUP BY queue, moment.now
),
delayed AS (
    SELECT queue, count(*) AS delayed FROM kalla.jobs WHERE status = 'pending' AND NOT due GROUP BY queue
),
running AS (
    SELECT queue, count(*) AS running FROM kalla.jobs WHERE status = 'claimed' GROUP BY queue
)
SELECT queue, coalesce(depth, 0) AS depth, coalesce(delayed, 0) AS delayed,
       coalesce(running, 0) AS running,
       greatest(coalesce(oldest_wait_seconds, 0), 0) AS oldest_wait_seconds,
       paused_at, paused_by
FROM waiting FULL JOIN delayed USING (queue) FULL JOIN running USING (queue)
FULL JOIN kalla.queues USING (queue)
ORDER BY queue;

-- name: waiting
-- Nobody can claim from a paused queue: wake-ups for it would start workers that stay idle.
SELECT queue, count(*) AS depth FROM kalla.jobs
WHERE status = 'pending' AND due
  AND NOT EXISTS (
      SELECT FROM kalla.queues WHERE queues.queue = jobs.queue AND queues.paused_at IS NOT NULL)
GROUP BY queue;

-- name: pause
INSERT INTO kalla.queues (queue, paused_at, paused_by) VALUES (%(queue)s, kalla.clock(), %(by)s)
ON CONFLICT (queue) DO UPDATE
SET paused_at = coalesce(queues.paused_at, excluded.paused_at),
    paused_by = coalesce(queues.paused_by, excluded.paused_by);

-- name: resume
UPDATE kalla.queues SET paused_at = NULL, paused_by = NULL WHERE queue = %(queue)s;

-- name: refresh_p95
SELECT coalesce(percentile_cont(0.95) WITHIN GROUP (
    ORDER BY extract(epoch FROM finished_at - claimed_at)), 0)::double precision AS seconds
FROM kalla.jobs
WHERE finished_at > kalla.clock() - interval '1 hour' AND type = 'refresh' AND status = 'completed';
