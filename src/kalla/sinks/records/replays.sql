-- Statements about replays of dead letters. Every write names the cursor that it moves on from.

-- name: create
INSERT INTO kalla.replays (pipeline, version, reason, field, created_by)
VALUES (%(pipeline)s, %(version)s, %(reason)s, %(field)s, %(by)s)
RETURNING replay, version, reason, field, status, cursor, chunk, deadline, rows, refused,
    created_at, created_by, ended_at;

-- name: replays
SELECT replay, version, reason, field, status, cursor, chunk, deadline, rows, refused,
    created_at, created_by, ended_at
FROM kalla.replays WHERE pipeline = %(pipeline)s
  AND (NOT %(running)s OR status = 'running')
ORDER BY replay DESC LIMIT 20;

-- name: intend
-- Before anything is inserted: who recovers knows exactly which letters may have become rows.
UPDATE kalla.replays SET chunk = %(chunk)s, deadline = %(deadline)s
WHERE replay = %(replay)s AND status = 'running' AND cursor = %(cursor)s
  AND chunk IS NOT DISTINCT FROM %(before)s
RETURNING replay;

-- name: commit
UPDATE kalla.replays SET chunk = NULL, deadline = NULL, cursor = %(next)s,
    rows = rows + %(rows)s, refused = refused + %(refused)s
WHERE replay = %(replay)s AND status = 'running' AND cursor = %(cursor)s AND chunk IS NOT NULL
RETURNING replay;

-- name: complete
UPDATE kalla.replays SET status = 'completed', ended_at = kalla.clock()
WHERE replay = %(replay)s AND status = 'running' AND chunk IS NULL
RETURNING replay;
