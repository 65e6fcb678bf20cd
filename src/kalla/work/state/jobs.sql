-- Statements about single jobs. Every write about a claimed job names its fence; zero rows means
-- "you lost it". Rows are locked in job_id order wherever a statement waits for several.

-- name: insert
-- Ids are drawn first, so that each given job is matched to its row, or to the pending one it repeats.
WITH moment AS MATERIALIZED (SELECT kalla.clock() AS now),
given AS MATERIALIZED (
    SELECT nextval('kalla.jobs_job_id_seq') AS job_id, item.*
    FROM jsonb_to_recordset(%(jobs)s::jsonb) AS item (
        position integer, type text, queue text, payload jsonb, priority smallint,
        delay_seconds double precision, gate text, dedupe_key text, running_key text,
        timeout_seconds double precision, max_runtime_seconds double precision, max_attempts smallint,
        backoff_seconds double precision, backoff_limit_seconds double precision)
    ORDER BY position
),
inserted AS (
    INSERT INTO kalla.jobs (
        job_id, run_id, opened_by, type, queue, payload, priority, due, created_at, run_after, gate,
        dedupe_key, running_key, timeout_seconds, max_runtime_seconds, max_attempts,
        backoff_seconds, backoff_limit_seconds)
    SELECT job_id, %(run_id)s, %(opened_by)s, type, queue, payload, priority,
           delay_seconds <= 0, moment.now, moment.now + make_interval(secs => delay_seconds), gate,
           dedupe_key, running_key, timeout_seconds, max_runtime_seconds, max_attempts,
           backoff_seconds, backoff_limit_seconds
    FROM given, moment
    ORDER BY position
    ON CONFLICT (dedupe_key) WHERE status = 'pending' AND dedupe_key IS NOT NULL DO NOTHING
    RETURNING job_id, queue, dedupe_key, due
),
waiting AS MATERIALIZED (
    -- Locked, so that the repeated job cannot start before this transaction's writes are seen.
    SELECT job_id, queue, dedupe_key, due FROM kalla.jobs
    WHERE status = 'pending' AND dedupe_key IS NOT NULL AND dedupe_key IN (
        SELECT given.dedupe_key FROM given LEFT JOIN inserted USING (job_id)
        WHERE inserted.job_id IS NULL)
    ORDER BY job_id
    FOR SHARE
)
SELECT given.position, given.gate, inserted.job_id IS NOT NULL AS inserted,
       coalesce(inserted.queue, twin.queue, waiting.queue) AS queue,
       coalesce(inserted.due, twin.due, waiting.due) AS due,
       coalesce(inserted.job_id, twin.job_id, waiting.job_id) AS job_id
FROM given
LEFT JOIN inserted USING (job_id)
LEFT JOIN inserted twin ON inserted.job_id IS NULL AND twin.dedupe_key = given.dedupe_key
LEFT JOIN waiting ON inserted.job_id IS NULL AND waiting.dedupe_key = given.dedupe_key
ORDER BY given.position;

-- name: claim
-- Trap 1: status = 'pending' is checked on the locked row. SKIP LOCKED lets workers pass each other.
-- Of jobs that share a running key one is taken, and none while another is claimed; the unique
-- index jobs_running holds where two claims race, and the loser looks again.
WITH moment AS MATERIALIZED (SELECT kalla.clock() AS now),
waiting AS MATERIALIZED (
    SELECT job_id, running_key, priority
    FROM kalla.jobs
    WHERE queue = %(queue)s AND status = 'pending' AND due AND type = ANY(%(types)s)
      AND NOT EXISTS (
          SELECT FROM kalla.queues WHERE queues.queue = %(queue)s AND queues.paused_at IS NOT NULL)
      AND (running_key IS NULL OR NOT EXISTS (
          SELECT FROM kalla.jobs other
          WHERE other.running_key = jobs.running_key AND other.status = 'claimed'))
    ORDER BY priority DESC, job_id
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
chosen AS (
    SELECT job_id FROM waiting WHERE running_key IS NULL
    UNION ALL
    (SELECT DISTINCT ON (running_key) job_id FROM waiting WHERE running_key IS NOT NULL
     ORDER BY running_key, priority DESC, job_id)
)
UPDATE kalla.jobs
SET status = 'claimed', fence = fence + 1, worker = %(worker)s, progress = NULL,
    claimed_at = moment.now, heartbeat_at = moment.now
FROM chosen, moment
WHERE jobs.job_id = chosen.job_id AND jobs.status = 'pending'
RETURNING jobs.job_id, fence, type, queue, payload, priority, failures, max_attempts, timeout_seconds,
          max_runtime_seconds, run_id, gate, opened_by, running_key;

-- name: heartbeat
-- SKIP LOCKED: a row that is locked is being ended by somebody; it needs no heartbeat.
WITH moment AS MATERIALIZED (SELECT kalla.clock() AS now),
held AS MATERIALIZED (
    SELECT jobs.job_id, mine.progress
    FROM kalla.jobs
    JOIN unnest(%(jobs)s::bigint[], %(fences)s::bigint[], %(progress)s::jsonb[])
        AS mine (job_id, fence, progress) ON mine.job_id = jobs.job_id AND mine.fence = jobs.fence
    WHERE jobs.status = 'claimed'
    ORDER BY jobs.job_id
    FOR NO KEY UPDATE OF jobs SKIP LOCKED
)
UPDATE kalla.jobs
SET heartbeat_at = moment.now, progress = coalesce(held.progress, jobs.progress)
FROM held, moment
WHERE jobs.job_id = held.job_id;

-- name: lost
-- Which of these claims are no longer ours.
SELECT mine.job_id
FROM unnest(%(jobs)s::bigint[], %(fences)s::bigint[]) AS mine (job_id, fence)
LEFT JOIN kalla.jobs ON jobs.job_id = mine.job_id AND jobs.fence = mine.fence AND jobs.status = 'claimed'
WHERE jobs.job_id IS NULL;

-- name: complete
-- Trap 2: only the holder of this fence completes, and only once. The order avoids deadlocks.
WITH moment AS MATERIALIZED (SELECT kalla.clock() AS now),
held AS MATERIALIZED (
    SELECT jobs.job_id, mine.result
    FROM kalla.jobs
    JOIN unnest(%(jobs)s::bigint[], %(fences)s::bigint[], %(results)s::jsonb[])
        AS mine (job_id, fence, result) ON mine.job_id = jobs.job_id AND mine.fence = jobs.fence
    WHERE jobs.status = 'claimed'
    ORDER BY jobs.job_id
    FOR NO KEY UPDATE OF jobs
)
UPDATE kalla.jobs
SET status = 'completed', result = held.result, finished_at = moment.now, heartbeat_at = NULL,
    error = NULL, traceback = NULL
FROM held, moment
WHERE jobs.job_id = held.job_id
RETURNING jobs.job_id;

-- name: next_of_keys
-- Trap 6: jobs that share a running key were announced while it was taken, so that whoever was woken
-- for them found nothing to claim. One of each key that is free is enough: no second could be taken.
SELECT waiting.queue
FROM unnest(%(keys)s::text[]) AS freed (running_key), LATERAL (
    SELECT queue FROM kalla.jobs
    WHERE jobs.running_key = freed.running_key AND status = 'pending' AND due
    ORDER BY priority DESC, job_id LIMIT 1) waiting
WHERE NOT EXISTS (
    SELECT FROM kalla.jobs other
    WHERE other.running_key = freed.running_key AND other.status = 'claimed');

-- name: standing
-- How a claim ended when the answer to its completion was lost with the connection.
SELECT status FROM kalla.jobs WHERE job_id = %(job_id)s AND fence = %(fence)s;

-- name: fail
-- Trap 7: a failure counts, and the last one ends the job. A job that comes back while another
-- with its dedupe key waits gives the key up, so that keys stay unique among pending jobs.
WITH ended AS (
    UPDATE kalla.jobs
    SET failures = failures + 1, heartbeat_at = NULL, error = %(error)s, traceback = %(traceback)s,
        away_since = NULL,
        status = CASE WHEN %(permanent)s OR failures + 1 >= max_attempts THEN 'failed' ELSE 'pending' END,
        finished_at = CASE WHEN %(permanent)s OR failures + 1 >= max_attempts THEN kalla.clock() END,
        due = backoff_seconds = 0,
        run_after = kalla.clock() + make_interval(secs =>
            least(backoff_limit_seconds, backoff_seconds * 2.0 ^ least(failures, 30))
            * (0.5 + 0.5 * random())),
        dedupe_key = CASE WHEN NOT EXISTS (
            SELECT FROM kalla.jobs other
            WHERE other.dedupe_key = jobs.dedupe_key AND other.status = 'pending') THEN dedupe_key END
    WHERE job_id = %(job_id)s AND fence = %(fence)s AND status = 'claimed'
    RETURNING job_id, fence, worker, claimed_at, status, queue, due
),
noted AS (
    INSERT INTO kalla.attempts (job_id, fence, ending, worker, claimed_at, error)
    SELECT job_id, fence, 'failed', worker, claimed_at, %(error)s FROM ended
)
SELECT status, queue, due FROM ended;

-- name: put_off
-- What the job needs is away, which is no failure of its own: it waits, and longer the longer that
-- lasts. Trap 7: past `patience` no row changes, and the answer counts as a failure; nor does one if
-- the job had waited, found what it needs, and that broke off under it: it may be the reason.
WITH moment AS MATERIALIZED (SELECT kalla.clock() AS now),
returned AS (
    UPDATE kalla.jobs
    SET status = 'pending', due = false, heartbeat_at = NULL, error = %(error)s,
        traceback = %(traceback)s, away_since = coalesce(away_since, moment.now),
        run_after = moment.now + make_interval(secs =>
            least(backoff_limit_seconds, %(longest)s, greatest(
                backoff_seconds, extract(epoch FROM moment.now - away_since)::double precision))
            * (0.5 + 0.5 * random())),
        dedupe_key = CASE WHEN NOT EXISTS (
            SELECT FROM kalla.jobs other
            WHERE other.dedupe_key = jobs.dedupe_key AND other.status = 'pending') THEN dedupe_key END
    FROM moment
    WHERE job_id = %(job_id)s AND fence = %(fence)s AND status = 'claimed'
      AND (away_since IS NULL
           OR NOT %(broke_off)s AND moment.now < away_since + make_interval(secs => %(patience)s))
    RETURNING job_id, fence, worker, claimed_at
),
noted AS (
    INSERT INTO kalla.attempts (job_id, fence, ending, worker, claimed_at, error)
    SELECT job_id, fence, 'put off', worker, claimed_at, %(error)s FROM returned
)
SELECT job_id FROM returned;

-- name: hand_back
-- A drain is no failure: the job waits again at once, and its next claim raises the fence further.
-- Trap 9: only the claim named by its fence is given up.
WITH moment AS MATERIALIZED (SELECT kalla.clock() AS now),
held AS MATERIALIZED (
    SELECT jobs.job_id,
           row_number() OVER (PARTITION BY jobs.dedupe_key ORDER BY jobs.job_id) = 1
           AND NOT EXISTS (
               SELECT FROM kalla.jobs other
               WHERE other.dedupe_key = jobs.dedupe_key AND other.status = 'pending') AS keeps_key
    FROM (
        SELECT jobs.* FROM kalla.jobs
        JOIN unnest(%(jobs)s::bigint[], %(fences)s::bigint[]) AS mine (job_id, fence)
            ON mine.job_id = jobs.job_id AND mine.fence = jobs.fence
        WHERE jobs.status = 'claimed'
        ORDER BY jobs.job_id
        FOR NO KEY UPDATE OF jobs
    ) jobs
),
returned AS (
    UPDATE kalla.jobs
    SET status = 'pending', due = true, run_after = moment.now, heartbeat_at = NULL,
        dedupe_key = CASE WHEN held.keeps_key THEN dedupe_key END
    FROM held, moment
    WHERE jobs.job_id = held.job_id
    RETURNING jobs.job_id, fence, worker, claimed_at, queue
),
noted AS (
    INSERT INTO kalla.attempts (job_id, fence, ending, worker, claimed_at)
    SELECT job_id, fence, 'handed back', worker, claimed_at FROM returned
)
SELECT job_id, queue FROM returned;

-- name: strays
-- Claims under this worker's name that it does not hold: the answer to their commit was lost.
SELECT job_id, fence
FROM kalla.jobs
WHERE status = 'claimed' AND worker = %(worker)s
  AND NOT EXISTS (
      SELECT FROM unnest(%(jobs)s::bigint[], %(fences)s::bigint[]) AS mine (job_id, fence)
      WHERE mine.job_id = jobs.job_id AND mine.fence = jobs.fence);

-- name: reap
-- Jobs without a heartbeat, and jobs that overran, wait again at once while attempts remain.
-- The row is locked and looked at again, so that a heartbeat that came in between wins.
-- A clock that jumps ahead makes every heartbeat old: the reaper says how late it can be at most.
WITH moment AS MATERIALIZED (
    SELECT least(kalla.clock(), to_timestamp(%(latest)s::double precision)) AS now
),
gone AS MATERIALIZED (
    SELECT jobs.job_id, jobs.silent,
           row_number() OVER (PARTITION BY jobs.dedupe_key ORDER BY jobs.job_id) = 1
           AND NOT EXISTS (
               SELECT FROM kalla.jobs other
               WHERE other.dedupe_key = jobs.dedupe_key AND other.status = 'pending') AS keeps_key
    FROM (
        SELECT job_id, dedupe_key,
               heartbeat_at < moment.now - make_interval(secs => timeout_seconds) AS silent
        FROM kalla.jobs, moment
        WHERE status = 'claimed' AND failures + 1 < max_attempts
          AND (heartbeat_at < moment.now - make_interval(secs => timeout_seconds)
               OR claimed_at < moment.now - make_interval(secs => max_runtime_seconds))
        ORDER BY job_id
        LIMIT %(limit)s
        FOR NO KEY UPDATE OF jobs SKIP LOCKED
    ) jobs
),
returned AS (
    UPDATE kalla.jobs
    SET status = 'pending', failures = failures + 1, due = true, run_after = moment.now,
        heartbeat_at = NULL, away_since = NULL, dedupe_key = CASE WHEN gone.keeps_key THEN dedupe_key END,
        error = CASE WHEN gone.silent
            THEN format('no heartbeat from worker %%s for %%s s', worker, timeout_seconds)
            ELSE format('ran longer than %%s s on worker %%s', max_runtime_seconds, worker) END
    FROM gone, moment
    WHERE jobs.job_id = gone.job_id
    RETURNING jobs.job_id, jobs.run_id, fence, worker, claimed_at, queue, error, gone.silent
),
noted AS (
    INSERT INTO kalla.attempts (job_id, fence, ending, worker, claimed_at, error)
    SELECT job_id, fence, CASE WHEN silent THEN 'lost' ELSE 'overran' END, worker, claimed_at, error
    FROM returned
)
SELECT job_id, run_id, fence, queue, worker, error FROM returned;

-- name: exhausted
-- Lost jobs with no attempt left: each is ended under the lock of its run.
SELECT job_id, fence, run_id
FROM kalla.jobs, (
    SELECT least(kalla.clock(), to_timestamp(%(latest)s::double precision)) AS now OFFSET 0
) moment
WHERE status = 'claimed' AND failures + 1 >= max_attempts
  AND (heartbeat_at < moment.now - make_interval(secs => timeout_seconds)
       OR claimed_at < moment.now - make_interval(secs => max_runtime_seconds))
ORDER BY job_id
LIMIT %(limit)s;

-- name: end_exhausted
-- Trap 7: the attempts are used up. Checked again: a heartbeat may have come since the look.
WITH moment AS MATERIALIZED (
    SELECT least(kalla.clock(), to_timestamp(%(latest)s::double precision)) AS now
),
gone AS MATERIALIZED (
    SELECT job_id, heartbeat_at < moment.now - make_interval(secs => timeout_seconds) AS silent
    FROM kalla.jobs, moment
    WHERE job_id = %(job_id)s AND fence = %(fence)s AND status = 'claimed'
      AND (heartbeat_at < moment.now - make_interval(secs => timeout_seconds)
           OR claimed_at < moment.now - make_interval(secs => max_runtime_seconds))
    FOR NO KEY UPDATE OF jobs
),
ended AS (
    UPDATE kalla.jobs
    SET status = 'failed', failures = failures + 1, finished_at = moment.now, heartbeat_at = NULL,
        error = CASE WHEN gone.silent
            THEN format('no heartbeat from worker %%s for %%s s, on attempt %%s of %%s',
                        worker, timeout_seconds, failures + 1, max_attempts)
            ELSE format('ran longer than %%s s on worker %%s, on attempt %%s of %%s',
                        max_runtime_seconds, worker, failures + 1, max_attempts) END
    FROM gone, moment
    WHERE jobs.job_id = gone.job_id
    RETURNING jobs.job_id, fence, worker, claimed_at, error, gone.silent, running_key
),
noted AS (
    INSERT INTO kalla.attempts (job_id, fence, ending, worker, claimed_at, error)
    SELECT job_id, fence, CASE WHEN silent THEN 'lost' ELSE 'overran' END, worker, claimed_at, error
    FROM ended
)
SELECT error, running_key FROM ended;

-- name: promote
-- Delayed jobs that came due join the waiting ones.
WITH moment AS MATERIALIZED (SELECT kalla.clock() AS now),
arrived AS MATERIALIZED (
    SELECT job_id FROM kalla.jobs, moment
    WHERE status = 'pending' AND NOT due AND run_after <= moment.now
    ORDER BY run_after
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF jobs SKIP LOCKED
)
UPDATE kalla.jobs SET due = true
FROM arrived
WHERE jobs.job_id = arrived.job_id AND jobs.status = 'pending'
RETURNING jobs.queue;

-- name: next_due
SELECT extract(epoch FROM min(run_after) - kalla.clock())::double precision AS seconds
FROM kalla.jobs WHERE status = 'pending' AND NOT due;

-- name: cancel
-- For a job outside any run. A pending one has no process, so it is stopped at once.
WITH target AS MATERIALIZED (
    SELECT job_id, status AS before FROM kalla.jobs
    WHERE job_id = %(job_id)s AND run_id IS NULL AND status IN ('pending', 'claimed')
    FOR NO KEY UPDATE
),
ended AS (
    UPDATE kalla.jobs
    SET status = 'cancelled', finished_at = kalla.clock(), heartbeat_at = NULL, error = %(error)s,
        stopped_at = CASE WHEN target.before = 'pending' THEN kalla.clock() END
    FROM target
    WHERE jobs.job_id = target.job_id
    RETURNING jobs.job_id, fence, worker, claimed_at, target.before
),
noted AS (
    INSERT INTO kalla.attempts (job_id, fence, ending, worker, claimed_at, error)
    SELECT job_id, fence, 'cancelled', worker, claimed_at, %(error)s FROM ended WHERE before = 'claimed'
)
SELECT job_id, before FROM ended;

-- name: stopped
-- The worker's word that a cancelled job's thread has ended.
UPDATE kalla.jobs SET stopped_at = kalla.clock()
FROM unnest(%(jobs)s::bigint[], %(fences)s::bigint[]) AS mine (job_id, fence)
WHERE jobs.job_id = mine.job_id AND jobs.fence = mine.fence
  AND jobs.status = 'cancelled' AND jobs.stopped_at IS NULL;

-- name: stopped_with_worker
-- Cancelled jobs whose worker is gone have stopped with it.
UPDATE kalla.jobs SET stopped_at = kalla.clock()
WHERE status = 'cancelled' AND stopped_at IS NULL
  AND NOT EXISTS (
      SELECT FROM kalla.workers
      WHERE workers.worker = jobs.worker
        AND workers.seen_at > kalla.clock() - make_interval(secs => jobs.timeout_seconds));

-- name: retry
-- For a job outside any run. The fence keeps counting: no number is ever issued twice.
UPDATE kalla.jobs
SET status = 'pending', failures = 0, due = true, run_after = kalla.clock(), finished_at = NULL,
    stopped_at = NULL, away_since = NULL, error = NULL, traceback = NULL, progress = NULL,
    dedupe_key = CASE WHEN NOT EXISTS (
        SELECT FROM kalla.jobs other
        WHERE other.dedupe_key = jobs.dedupe_key AND other.status = 'pending') THEN dedupe_key END
WHERE job_id = %(job_id)s AND run_id IS NULL AND status IN ('failed', 'cancelled')
RETURNING queue;

-- name: get
SELECT * FROM kalla.jobs WHERE job_id = %(job_id)s;

-- name: attempts
SELECT fence, ending, worker, claimed_at, ended_at, error
FROM kalla.attempts WHERE job_id = %(job_id)s ORDER BY fence;

-- name: list
SELECT * FROM kalla.jobs
WHERE (%(status)s::text IS NULL OR status = %(status)s)
  AND (%(queue)s::text IS NULL OR queue = %(queue)s)
  AND (%(type)s::text IS NULL OR type = %(type)s)
  AND (%(run_id)s::bigint IS NULL OR run_id = %(run_id)s)
  AND (%(before)s::bigint IS NULL OR job_id < %(before)s)
ORDER BY job_id DESC
LIMIT %(limit)s;

-- name: inputs
-- What came through the gate that inserted this job.
SELECT result FROM kalla.jobs WHERE run_id = %(run_id)s AND gate = %(gate)s ORDER BY job_id;

-- name: sweep
-- Finished jobs of no run, past their time.
WITH old AS (
    SELECT job_id FROM kalla.jobs
    WHERE finished_at < kalla.clock() - make_interval(secs => %(seconds)s) AND run_id IS NULL
    ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
DELETE FROM kalla.jobs USING old WHERE jobs.job_id = old.job_id;
