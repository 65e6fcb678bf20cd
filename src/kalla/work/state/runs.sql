-- Statements about runs and their gates. Whoever changes a run locks its row first, so that two last
-- chunks see each other and a cancel meets no half-done completion.

-- name: create
INSERT INTO kalla.runs (kind, deadline)
VALUES (%(kind)s, kalla.clock() + make_interval(secs => %(total_timeout_seconds)s))
RETURNING run_id;

-- name: create_gate
INSERT INTO kalla.gates (run_id, gate, opens) VALUES (%(run_id)s, %(gate)s, %(opens)s);

-- name: lock
SELECT run_id, status FROM kalla.runs WHERE run_id = %(run_id)s FOR NO KEY UPDATE;

-- name: expect_jobs
UPDATE kalla.runs SET jobs = jobs + %(count)s WHERE run_id = %(run_id)s;

-- name: expect_at_gate
-- Trap 4: a plan counts towards the gate itself and raises `expected` for its chunks before it
-- arrives, in one transaction, so that the total is never reached while a plan still fans out.
UPDATE kalla.gates SET expected = expected + %(count)s
WHERE run_id = %(run_id)s AND gate = %(gate)s AND opened_at IS NULL
RETURNING gate;

-- name: arrive
-- Trap 3: called only after a fenced completion changed a row, hence once a job.
UPDATE kalla.gates SET arrived = arrived + 1 WHERE run_id = %(run_id)s AND gate = %(gate)s;

-- name: count_completed
UPDATE kalla.runs SET completed = completed + 1 WHERE run_id = %(run_id)s;

-- name: open_gates
-- Trap 5: opening and the insert of what it opens are one transaction. A gate opens once.
UPDATE kalla.gates SET opened_at = kalla.clock()
WHERE run_id = %(run_id)s AND opened_at IS NULL AND expected > 0 AND arrived = expected
RETURNING gate, opens;

-- name: finish
UPDATE kalla.runs SET status = 'completed', finished_at = kalla.clock()
WHERE run_id = %(run_id)s AND status = 'running' AND completed = jobs
RETURNING run_id;

-- name: end
UPDATE kalla.runs SET status = %(status)s, error = %(error)s, finished_at = kalla.clock()
WHERE run_id = %(run_id)s AND status = 'running'
RETURNING run_id;

-- name: cancel_jobs
-- Trap 8: a run that ended takes its other jobs with it, waiting or running.
WITH target AS MATERIALIZED (
    SELECT job_id, status AS before FROM kalla.jobs
    WHERE run_id = %(run_id)s AND status IN ('pending', 'claimed')
    ORDER BY job_id
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
SELECT job_id FROM ended WHERE before = 'claimed';

-- name: late
SELECT run_id FROM kalla.runs WHERE status = 'running' AND deadline < kalla.clock()
ORDER BY deadline LIMIT %(limit)s;

-- name: is_late
-- Asked again under the lock: a run may have been retried since somebody found it late.
SELECT FROM kalla.runs WHERE run_id = %(run_id)s AND deadline < kalla.clock();

-- name: revive
-- Retry by hand: what had completed stays completed and counted, the rest waits again.
UPDATE kalla.runs
SET status = 'running', error = NULL, finished_at = NULL,
    deadline = kalla.clock() + make_interval(secs => %(total_timeout_seconds)s)
WHERE run_id = %(run_id)s AND status IN ('failed', 'cancelled')
RETURNING run_id;

-- name: jobs_after
-- Jobs about a run that has ended, such as the removal of what it left: `after_run` names them.
SELECT job_id, status FROM kalla.jobs
WHERE dedupe_key = %(dedupe_key)s AND status IN ('pending', 'claimed')
ORDER BY job_id FOR UPDATE;

-- name: cancel_after
UPDATE kalla.jobs SET status = 'cancelled', finished_at = kalla.clock(), stopped_at = kalla.clock(),
    error = 'the run was retried'
WHERE job_id = ANY(%(job_ids)s::bigint[]) AND status = 'pending';

-- name: revive_jobs
UPDATE kalla.jobs
SET status = 'pending', failures = 0, due = true, run_after = kalla.clock(), finished_at = NULL,
    stopped_at = NULL, away_since = NULL, error = NULL, traceback = NULL, progress = NULL
WHERE run_id = %(run_id)s AND status IN ('failed', 'cancelled')
RETURNING queue;

-- name: get
SELECT * FROM kalla.runs WHERE run_id = %(run_id)s;

-- name: sweep
WITH old AS (
    SELECT run_id FROM kalla.runs
    WHERE status <> 'running' AND finished_at < kalla.clock() - make_interval(secs => %(seconds)s)
    ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
DELETE FROM kalla.runs USING old WHERE runs.run_id = old.run_id;

-- name: database_time
SELECT extract(epoch FROM kalla.clock())::double precision AS seconds;
