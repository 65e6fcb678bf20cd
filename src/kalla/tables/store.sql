-- name: sources
SELECT s.name, s.location, s.format, s.key, s.watermark, s.mirror_job, s.mirrored_at, s.changed_at,
       s.changed_by, j.status AS job_status, j.error AS job_error
FROM kalla.table_sources s LEFT JOIN kalla.jobs j ON j.job_id = s.mirror_job
ORDER BY s.name;

-- name: put_source
INSERT INTO kalla.table_sources (name, location, format, key, watermark, changed_by)
VALUES (%(name)s, %(location)s, %(format)s, %(key)s, %(watermark)s, %(by)s)
ON CONFLICT (name) DO UPDATE
SET location = excluded.location, format = excluded.format, key = excluded.key,
    watermark = excluded.watermark, mirror_job = NULL, mirrored_at = NULL,
    changed_at = kalla.clock(), changed_by = excluded.changed_by;

-- name: registered
SELECT name, document FROM kalla.sources;

-- name: set_mirror_job
UPDATE kalla.table_sources SET mirror_job = %(job_id)s WHERE name = %(name)s;

-- Only the newest look counts: an older one may have read another place.
-- name: set_mirrored
UPDATE kalla.table_sources SET mirrored_at = %(mirrored_at)s
WHERE name = %(name)s AND mirror_job = %(job_id)s;

-- name: tables
SELECT t.*, extract(epoch FROM kalla.clock() - t.data_time)::float8 AS lag_seconds,
       extract(epoch FROM t.last_tick_at)::float8 AS last_tick,
       (SELECT r.error FROM kalla.refreshes r WHERE r.table_id = t.table_id
        ORDER BY r.refresh_id DESC LIMIT 1) AS last_error
FROM kalla.dynamic_tables t
ORDER BY t.name;

-- The lock makes changes of the graph, new ticks and settles one after another: two schedulers never
-- open two ticks for one table.
-- name: lock_graph
SELECT pg_advisory_xact_lock(7306101);

-- A command takes its turn, or schedulers and settles would always be first; but it holds a
-- connection meanwhile, so it waits for a moment only.
-- name: wait_briefly
SET LOCAL lock_timeout = '300ms';

-- name: wait_for_rows
SET LOCAL lock_timeout TO DEFAULT;

-- Columns of sources are read inside the command's transaction, which is idle meanwhile.
-- name: be_patient
SET LOCAL idle_in_transaction_session_timeout = '60s';

-- One scheduler at a time advances open ticks; the others skip this second instead of waiting. Taken
-- before the lock of the graph.
-- name: may_advance
SELECT pg_try_advisory_xact_lock(7306102) AS mine;

-- name: insert_table
INSERT INTO kalla.dynamic_tables (name, definition, query, hash, columns, reads, changed_by)
VALUES (%(name)s, %(definition)s, %(query)s, %(hash)s, %(columns)s, %(reads)s, %(by)s)
RETURNING table_id, version;

-- name: update_table
UPDATE kalla.dynamic_tables
SET definition = %(definition)s, query = %(query)s, hash = %(hash)s, columns = %(columns)s,
    reads = %(reads)s, version = version + 1, changed_at = kalla.clock(), changed_by = %(by)s,
    errors = 0,
    -- Suspended by a person, it stays so, unless its query is another one.
    state = CASE WHEN hash = %(hash)s AND errors < %(limit)s THEN state ELSE 'active' END,
    state_reason = CASE WHEN hash = %(hash)s AND errors < %(limit)s THEN state_reason ELSE '' END
WHERE name = %(name)s
RETURNING table_id, version;

-- name: insert_version
INSERT INTO kalla.table_versions (table_id, version, definition, applied_by)
VALUES (%(table_id)s, %(version)s, %(definition)s, %(by)s);

-- name: delete_table
DELETE FROM kalla.dynamic_tables WHERE name = %(name)s;

-- name: rename
UPDATE kalla.dynamic_tables
SET name = %(new)s, definition = jsonb_set(definition, '{name}', to_jsonb(%(new)s::text)),
    changed_at = kalla.clock()
WHERE name = %(old)s;

-- name: set_state
UPDATE kalla.dynamic_tables
SET state = %(state)s, state_reason = %(reason)s,
    errors = CASE WHEN %(state)s = 'active' THEN 0 ELSE errors END
WHERE name = %(name)s;

-- Tables that an open tick still has to refresh: a table that is behind skips ticks. One that is
-- done does not wait for the slowest table of its tick.
-- name: busy
SELECT DISTINCT e.table_id FROM kalla.tick_tables e JOIN kalla.ticks k USING (tick_id)
WHERE k.closed_at IS NULL AND e.status IN ('waiting', 'queued');

-- name: open_tick
INSERT INTO kalla.ticks (pins, pinned_at) VALUES (%(pins)s, %(pinned_at)s) RETURNING tick_id;

-- name: request
UPDATE kalla.dynamic_tables SET requested = %(how)s, requested_at = kalla.clock()
WHERE name = %(name)s;

-- A request stays: it is carried out when the source can be read again.
-- name: set_trouble
UPDATE kalla.dynamic_tables SET state_reason = %(reason)s, last_tick_at = %(pinned_at)s
WHERE table_id = ANY(%(table_ids)s) AND state = 'active';

-- name: clock
SELECT kalla.clock() AS now;

-- name: join_tick
INSERT INTO kalla.tick_tables (tick_id, table_id, forced)
SELECT %(tick_id)s, table_id, table_id = ANY(%(forced)s)
FROM unnest(%(table_ids)s::bigint[]) AS table_id;

-- A mirror may be older than the request, which then is answered by a later tick. That one need not
-- recompute what this one does.
-- name: mark_ticked
UPDATE kalla.dynamic_tables
SET last_tick_at = %(pinned_at)s,
    requested = CASE WHEN requested = 'full' AND NOT table_id = ANY(%(forced)s) THEN 'full'
                     WHEN requested_at > %(pinned_at)s THEN 'refresh' END,
    -- Its sources could be pinned: what kept it from that is over.
    state_reason = CASE WHEN state = 'active' THEN '' ELSE state_reason END
WHERE table_id = ANY(%(table_ids)s);

-- name: open_ticks
SELECT k.tick_id, k.pins, k.pinned_at FROM kalla.ticks k WHERE k.closed_at IS NULL
  AND (%(tick_id)s::bigint IS NULL OR k.tick_id = %(tick_id)s)
ORDER BY k.tick_id;

-- name: tick_tables
SELECT e.table_id, e.status, e.forced, e.data_version, e.job_id, t.name, j.status AS job_status,
       j.error AS job_error
FROM kalla.tick_tables e JOIN kalla.dynamic_tables t USING (table_id)
LEFT JOIN kalla.jobs j ON j.job_id = e.job_id
WHERE e.tick_id = %(tick_id)s;

-- name: set_entry
UPDATE kalla.tick_tables
SET status = %(status)s, data_version = %(data_version)s, job_id = coalesce(%(job_id)s, job_id)
WHERE tick_id = %(tick_id)s AND table_id = %(table_id)s;

-- name: close_tick
UPDATE kalla.ticks SET closed_at = kalla.clock()
WHERE tick_id = %(tick_id)s AND closed_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM kalla.tick_tables e
    WHERE e.tick_id = %(tick_id)s AND e.status IN ('waiting', 'queued'));

-- Without a change of its inputs, the rows stand for this tick too.
-- name: advance
UPDATE kalla.dynamic_tables
SET data_time = greatest(data_time, %(data_time)s), frontier = %(frontier)s
WHERE table_id = %(table_id)s;

-- The same for many tables, which were looked at before: not if their definition changed since.
-- name: stand_for
UPDATE kalla.dynamic_tables t
SET data_time = greatest(data_time, %(moment)s), last_tick_at = greatest(last_tick_at, %(moment)s)
FROM unnest(%(table_ids)s::bigint[], %(versions)s::int[]) AS seen (table_id, version)
WHERE t.table_id = seen.table_id AND t.version = seen.version;

-- Never backwards: an older refresh that is adopted late does not lower the data time.
-- name: refreshed
UPDATE kalla.dynamic_tables
SET data_time = greatest(data_time, %(data_time)s), frontier = %(frontier)s,
    data_version = %(data_version)s, delta_id = %(delta_id)s, errors = 0, state_reason = CASE WHEN state = 'active' THEN '' ELSE state_reason END,
    row_count = coalesce(%(row_count)s, row_count)
WHERE table_id = %(table_id)s;

-- name: count_error
UPDATE kalla.dynamic_tables
SET errors = errors + 1,
    state = CASE WHEN errors + 1 >= %(limit)s THEN 'suspended' ELSE state END,
    state_reason = CASE WHEN errors + 1 >= %(limit)s THEN %(reason)s ELSE state_reason END
WHERE table_id = %(table_id)s;

-- name: record
INSERT INTO kalla.refreshes (table_id, tick_id, job_id, status, strategy, reason,
    predicted_seconds, seconds, rows_deleted, rows_inserted, row_count, changed_rows,
    affected_keys, lag_seconds, error)
SELECT %(table_id)s, %(tick_id)s, %(job_id)s, %(status)s, %(strategy)s, %(reason)s,
    %(predicted_seconds)s, %(seconds)s, %(rows_deleted)s, %(rows_inserted)s, %(row_count)s,
    %(changed_rows)s, %(affected_keys)s,
    extract(epoch FROM kalla.clock() - data_time)::float8, %(error)s
FROM kalla.dynamic_tables WHERE table_id = %(table_id)s;

-- name: history
SELECT r.* FROM kalla.refreshes r JOIN kalla.dynamic_tables t USING (table_id)
WHERE t.name = %(name)s ORDER BY r.refresh_id DESC LIMIT %(limit)s;

-- name: versions
SELECT v.version, v.definition, v.applied_at, v.applied_by
FROM kalla.table_versions v JOIN kalla.dynamic_tables t USING (table_id)
WHERE t.name = %(name)s ORDER BY v.version DESC;

-- The last ten refreshes, so that a strategy that was slow once is tried again, and the last three
-- FULL ones, which may be older: every prediction compares with them. The first one of all warms up.
-- Each part reads the index from its newest end: the length of the history does not matter.
-- name: samples
WITH newest AS (
    SELECT * FROM kalla.refreshes
    WHERE table_id = %(table_id)s AND status = 'completed' AND seconds IS NOT NULL
      AND strategy IN ('DELTA', 'AFFECTED_KEYS', 'FULL')
    ORDER BY refresh_id DESC LIMIT 10
), recomputed AS (
    SELECT * FROM kalla.refreshes
    WHERE table_id = %(table_id)s AND status = 'completed' AND seconds IS NOT NULL
      AND strategy = 'FULL' AND reason <> 'the first refresh'
    ORDER BY refresh_id DESC LIMIT 3
), first AS (
    SELECT * FROM kalla.refreshes
    WHERE table_id = %(table_id)s AND status = 'completed' AND seconds IS NOT NULL
      AND strategy = 'FULL' AND reason = 'the first refresh'
    ORDER BY refresh_id DESC LIMIT 3
)
SELECT strategy, seconds, changed_rows, affected_keys
FROM (SELECT * FROM newest UNION SELECT * FROM recomputed UNION SELECT * FROM first) lines
WHERE reason <> 'the first refresh' OR strategy <> 'FULL' OR NOT EXISTS (SELECT 1 FROM recomputed)
ORDER BY refresh_id DESC;

-- Of the strategy that a table took last: one slow FULL says nothing about the next DELTA. By table,
-- so that the index finds its newest lines and the length of the history does not matter.
-- name: durations
SELECT t.table_id, d.p95
FROM kalla.dynamic_tables t
CROSS JOIN LATERAL (
    SELECT percentile_cont(0.95) WITHIN GROUP (ORDER BY seconds) AS p95
    FROM (
        SELECT seconds, strategy, first_value(strategy) OVER (ORDER BY refresh_id DESC) AS newest
        FROM kalla.refreshes r
        WHERE r.table_id = t.table_id AND r.status = 'completed' AND r.seconds IS NOT NULL
          AND r.strategy IN ('DELTA', 'AFFECTED_KEYS', 'FULL')
        ORDER BY r.refresh_id DESC LIMIT 20
    ) lately
    WHERE strategy = newest
) d
WHERE d.p95 IS NOT NULL;

-- What makes tables due before the time that was worked out: while this is equal, nothing has to be
-- looked at.
-- name: graph_state
SELECT t.*, k.* FROM (
    SELECT count(*) AS tables, max(changed_at) AS changed_at, max(last_tick_at) AS last_tick_at,
           count(*) FILTER (WHERE state = 'active') AS active, count(requested) AS requested
    FROM kalla.dynamic_tables
) t, (SELECT count(*) AS open_ticks FROM kalla.ticks WHERE closed_at IS NULL) k;

-- name: sweep_ticks
DELETE FROM kalla.ticks WHERE closed_at < kalla.clock() - interval '1 hour';

-- Of every table the newest lines stay, and the last FULL ones: predictions compare with them.
-- name: sweep_refreshes
WITH kept AS (
    SELECT k.refresh_id FROM kalla.dynamic_tables t CROSS JOIN LATERAL (
        (SELECT r.refresh_id FROM kalla.refreshes r WHERE r.table_id = t.table_id
         ORDER BY r.refresh_id DESC LIMIT 50)
        UNION ALL
        (SELECT r.refresh_id FROM kalla.refreshes r
         WHERE r.table_id = t.table_id AND r.strategy = 'FULL' AND r.status = 'completed'
         ORDER BY r.refresh_id DESC LIMIT 3)
    ) k
)
DELETE FROM kalla.refreshes WHERE refresh_id IN (
    SELECT r.refresh_id FROM kalla.refreshes r
    WHERE r.finished_at < kalla.clock() - make_interval(secs => %(seconds)s)
      AND NOT EXISTS (SELECT 1 FROM kept k WHERE k.refresh_id = r.refresh_id)
    ORDER BY r.refresh_id LIMIT 10000);
