-- Statements about schedules.

-- name: create
INSERT INTO kalla.schedules
    (recipe_id, cron, time_zone, missed, notify_url, notify_above, next_at, created_by)
VALUES (%(recipe_id)s, %(cron)s, %(time_zone)s, %(missed)s, %(notify_url)s, %(notify_above)s,
        %(next_at)s, %(by)s)
RETURNING schedule_id;

-- name: listing
-- With what became of the last time that was dealt with.
SELECT s.*, t.due_at AS last_due_at, t.run_id AS last_run_id, t.note AS last_note
FROM kalla.schedules s
LEFT JOIN LATERAL (
    SELECT due_at, run_id, note FROM kalla.schedule_times t
    WHERE t.schedule_id = s.schedule_id ORDER BY due_at DESC LIMIT 1
) t ON true
WHERE (%(recipe_id)s::text IS NULL OR s.recipe_id = %(recipe_id)s)
  AND (%(schedule_id)s::bigint IS NULL OR s.schedule_id = %(schedule_id)s)
ORDER BY s.schedule_id LIMIT 500;

-- name: pause
UPDATE kalla.schedules SET is_paused = %(is_paused)s, next_at = coalesce(%(next_at)s, next_at)
WHERE schedule_id = %(schedule_id)s;

-- name: remove
DELETE FROM kalla.schedules WHERE schedule_id = %(schedule_id)s;

-- name: due
-- One that is due, held until what it is due for has committed.
-- Trap: without SKIP LOCKED two schedulers would wait for each other; without the lock both would run it.
SELECT schedule_id, recipe_id, cron, time_zone, missed, notify_url, notify_above, next_at, created_by,
       kalla.clock() AS now
FROM kalla.schedules
WHERE NOT is_paused AND next_at <= kalla.clock() AND schedule_id <> ALL(%(without)s::bigint[])
ORDER BY next_at LIMIT 1
FOR UPDATE SKIP LOCKED;

-- name: handled
-- The primary key is the promise that no time is run twice.
INSERT INTO kalla.schedule_times (schedule_id, due_at, run_id, note)
VALUES (%(schedule_id)s, %(due_at)s, %(run_id)s, %(note)s);

-- name: advance
UPDATE kalla.schedules SET next_at = %(next_at)s, is_paused = is_paused OR %(is_paused)s
WHERE schedule_id = %(schedule_id)s;

-- name: running
-- The run that a schedule has started and that has not ended.
SELECT max(t.run_id) AS run_id FROM kalla.schedule_times t JOIN kalla.runs r USING (run_id)
WHERE t.schedule_id = %(schedule_id)s AND r.status = 'running';

-- name: clock
SELECT kalla.clock() AS now;

-- name: forget
DELETE FROM kalla.schedule_times WHERE handled_at < kalla.clock() - make_interval(secs => %(seconds)s);
