-- Statements about reconciliations. While kalla.runs has the run, its status is the truth; the row
-- here keeps a copy of how it ended, which `conclude` writes.

-- name: create
INSERT INTO kalla.reconciliations
    (run_id, name, recipe_id, recipe_version, recipe_hash, recipe, sources, submitted_by, callback)
VALUES (%(run_id)s, %(name)s, %(recipe_id)s, %(recipe_version)s, %(recipe_hash)s, %(recipe)s,
        %(sources)s, %(submitted_by)s, %(callback)s);

-- name: adopt
-- Evidence that was made elsewhere: a run that has ended already, under a number of its own.
INSERT INTO kalla.reconciliations
    (run_id, name, recipe_id, recipe_hash, recipe, sources, submitted_by, created_at, status,
     finished_at, evidence_url, report)
VALUES (nextval(pg_get_serial_sequence('kalla.runs', 'run_id')), %(name)s, %(recipe_id)s,
        %(recipe_hash)s, %(recipe)s, %(sources)s, %(submitted_by)s, %(created_at)s, 'completed',
        %(finished_at)s, %(evidence_url)s, %(report)s)
RETURNING run_id;

-- name: serialise_adoption
-- Two imports of one folder take turns: neither would see the other's run.
SELECT pg_advisory_xact_lock(hashtextextended('kalla evidence ' || %(evidence_url)s, 0));

-- name: adopted
-- The run that shows this evidence already. Its place alone does not tell, for a folder that was
-- removed may be written anew.
SELECT run_id FROM kalla.reconciliations
WHERE evidence_url = %(evidence_url)s AND (report ->> 'started_at')::timestamptz = %(started_at)s
ORDER BY run_id LIMIT 1;

-- name: settle
UPDATE kalla.reconciliations SET evidence_url = %(evidence_url)s, report = %(report)s
WHERE run_id = %(run_id)s;

-- name: listing
-- Newest first; `before` is the last run of the page before. Of an error, one sign more than is shown.
SELECT c.run_id, c.name, c.recipe_id, c.recipe_version, c.recipe_hash, c.sources, c.submitted_by,
       c.created_at, coalesce(r.status, c.status) AS status,
       left(CASE WHEN r.run_id IS NULL THEN c.error ELSE r.error END, 501) AS error,
       CASE WHEN r.run_id IS NULL THEN c.finished_at ELSE r.finished_at END AS finished_at,
       (c.report ->> 'match_rate')::double precision AS match_rate,
       (c.report ->> 'exceptions')::bigint AS exceptions
FROM kalla.reconciliations c LEFT JOIN kalla.runs r USING (run_id)
WHERE (%(run_id)s::bigint IS NULL OR c.run_id = %(run_id)s)
  AND (%(status)s::text IS NULL OR coalesce(r.status, c.status) = %(status)s)
  AND (%(recipe_id)s::text IS NULL OR c.recipe_id = %(recipe_id)s)
  AND (%(before)s::bigint IS NULL OR c.run_id < %(before)s)
ORDER BY c.run_id DESC
LIMIT %(limit)s;

-- name: kept
SELECT recipe, evidence_url, report FROM kalla.reconciliations WHERE run_id = %(run_id)s;

-- name: jobs
-- How far the run's jobs are: sides are staged by chunks, then one job matches.
-- Trap: a job that waits again still has the progress and the claim of its last attempt.
SELECT type, payload ->> 'side' AS side, status, progress, result, run_after, claimed_at,
       heartbeat_at, finished_at, away_since, left(error, 501) AS error, kalla.clock() AS now
FROM kalla.jobs WHERE run_id = %(run_id)s ORDER BY job_id;

-- name: reopen
-- A run that was retried has not ended, whatever was concluded before.
UPDATE kalla.reconciliations c SET status = 'running', error = NULL, finished_at = NULL, tidy_at = NULL
FROM kalla.runs r
WHERE r.run_id = c.run_id AND r.status = 'running' AND c.finished_at IS NOT NULL;

-- name: ended
-- Runs whose ending is not concluded: those that never were, and those that were retried and ended
-- since. Whoever finds one holds its row; the last condition is asked again of a row that somebody
-- else has concluded meanwhile, so that it happens once.
WITH found AS (
    SELECT run_id FROM kalla.reconciliations WHERE finished_at IS NULL
    UNION
    SELECT run_id FROM kalla.runs r JOIN kalla.reconciliations c USING (run_id)
    WHERE r.status <> 'running' AND r.finished_at > kalla.clock() - interval '1 hour'
      AND c.finished_at IS DISTINCT FROM r.finished_at
)
SELECT c.run_id, c.name, c.callback, c.evidence_url, c.report, r.finished_at,
       CASE WHEN r.run_id IS NOT NULL THEN r.status
            WHEN c.report IS NOT NULL THEN 'completed' ELSE 'failed' END AS status,
       CASE WHEN r.run_id IS NOT NULL THEN r.error
            WHEN c.report IS NULL THEN 'its jobs were removed before it had ended' END AS error
FROM found JOIN kalla.reconciliations c USING (run_id) LEFT JOIN kalla.runs r USING (run_id)
WHERE r.status IS DISTINCT FROM 'running'
  AND (c.finished_at IS NULL OR (r.run_id IS NOT NULL AND c.finished_at IS DISTINCT FROM r.finished_at))
  AND c.run_id <> ALL(%(without)s::bigint[])
ORDER BY c.run_id
LIMIT %(limit)s
FOR UPDATE OF c SKIP LOCKED;

-- name: conclude
-- A completed run's staged rows are of no use any more; those of another may serve a retry.
UPDATE kalla.reconciliations
SET status = %(status)s, error = %(error)s, finished_at = coalesce(%(finished_at)s, kalla.clock()),
    tidy_at = kalla.clock()
        + CASE WHEN %(status)s = 'completed' THEN interval '0' ELSE make_interval(secs => %(kept)s) END
WHERE run_id = %(run_id)s;

-- name: untidy
-- What is to be removed is decided now, not when the run ended: it may have been retried since.
-- Attempts with a higher fence than any so far are none of this look's business. A completed run is
-- looked at once more later, for a worker that was cut off may write until then.
-- Trap: a retry that has not committed yet still looks ended; it holds the run's row, so that this
-- skips it. A retry that comes after waits for us, and then finds the removal and cancels it.
WITH due AS (
    SELECT run_id, evidence_url, tidy_at, finished_at FROM kalla.reconciliations
    WHERE tidy_at <= kalla.clock() AND finished_at IS NOT NULL
    ORDER BY tidy_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
),
held AS (
    SELECT r.run_id FROM kalla.runs r JOIN due USING (run_id)
    WHERE r.status <> 'running' FOR SHARE OF r SKIP LOCKED
),
ended AS (
    SELECT due.* FROM due
    WHERE run_id IN (SELECT run_id FROM held)
       OR NOT EXISTS (SELECT FROM kalla.runs WHERE runs.run_id = due.run_id)
)
UPDATE kalla.reconciliations c
SET tidy_at = CASE WHEN ended.tidy_at < ended.finished_at + make_interval(secs => %(kept)s)
                   THEN ended.finished_at + make_interval(secs => %(kept)s) END
FROM ended
WHERE c.run_id = ended.run_id
RETURNING c.run_id, c.evidence_url,
    (SELECT coalesce(max(fence), 0) FROM kalla.jobs WHERE jobs.run_id = c.run_id) AS fence;

-- name: tidy_later
-- After untidy, in its transaction: the removal could not be submitted, and is looked at again.
UPDATE kalla.reconciliations SET tidy_at = kalla.clock() + interval '10 minutes' WHERE run_id = %(run_id)s;
