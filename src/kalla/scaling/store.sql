-- Scaling decisions: the recent needs that stabilise them, and the decisions themselves.

-- name: lock
-- One process at a time looks; the others find its look and do nothing.
SELECT pg_try_advisory_xact_lock(hashtext('kalla.scaling')) AS locked;

-- name: last_look
SELECT extract(epoch FROM max(at))::double precision AS at FROM kalla.scaling_needs WHERE pool = %(pool)s;

-- name: now
SELECT extract(epoch FROM kalla.clock())::double precision AS at;

-- name: needs
SELECT extract(epoch FROM at)::double precision AS at, workers FROM kalla.scaling_needs
WHERE pool = %(pool)s AND role = %(role)s
  AND at >= to_timestamp(%(since)s)
ORDER BY at;

-- name: sink_slots
-- A slot is work without a job. Those of stopped pipelines, and held ones above a lowered number of
-- replicas, are on their way out and ask for no worker.
SELECT coalesce(sum(replicas), 0)::integer AS wanted, coalesce(sum(held.slots), 0)::integer AS held
FROM kalla.pipeline_state AS state
CROSS JOIN LATERAL (
    SELECT count(*) AS slots FROM kalla.leases
    WHERE resource = 'sink/' || state.pipeline AND slot < state.replicas AND until > kalla.clock()
) AS held
WHERE desired = 'started';

-- name: remember
INSERT INTO kalla.scaling_needs (pool, role, at, workers, demand, current, desired, saturation)
VALUES (%(pool)s, %(role)s, to_timestamp(%(at)s), %(workers)s, %(demand)s, %(current)s, %(desired)s,
        %(saturation)s)
ON CONFLICT DO NOTHING;

-- name: samples
-- The highest of every half minute: a chart of an hour has no room for more, and a peak is not lost.
SELECT role, extract(epoch FROM date_bin('30 seconds', at, 'epoch'))::double precision AS at,
       max(demand) AS demand, max(current) AS current, max(desired) AS desired,
       max(saturation)::double precision AS saturation
FROM kalla.scaling_needs
WHERE pool = %(pool)s AND at >= kalla.clock() - make_interval(secs => %(seconds)s)
GROUP BY 1, 2 ORDER BY 1, 2;

-- name: forget
DELETE FROM kalla.scaling_needs WHERE pool = %(pool)s AND at < to_timestamp(%(before)s);

-- name: record
-- Only what differs from the decision before it: a quiet night leaves one row, not thousands.
-- A decision is another one if it wants another number, is held by another limit, or meets another
-- number of workers.
INSERT INTO kalla.scaling_decisions (pool, role, at, current, needed, recent_need, desired, held_by,
                                     reason, inputs, policy)
SELECT %(pool)s, %(role)s, to_timestamp(%(at)s), %(current)s, %(needed)s, %(recent_need)s,
       %(desired)s, %(held_by)s, %(reason)s, %(inputs)s, %(policy)s
WHERE NOT EXISTS (
    SELECT FROM (
        SELECT current, desired, held_by FROM kalla.scaling_decisions
        WHERE pool = %(pool)s AND role = %(role)s ORDER BY decision_id DESC LIMIT 1
    ) AS last
    WHERE last.current = %(current)s AND last.desired = %(desired)s
      AND last.held_by IS NOT DISTINCT FROM %(held_by)s::text
);

-- name: decisions
SELECT decision_id, pool, role, at, current, needed, recent_need, desired, held_by, reason, inputs,
       policy
FROM kalla.scaling_decisions
WHERE (%(pool)s::text IS NULL OR pool = %(pool)s)
  AND (%(role)s::text IS NULL OR role = %(role)s)
  AND (%(before)s::bigint IS NULL OR decision_id < %(before)s)
ORDER BY decision_id DESC
LIMIT %(limit)s;

-- name: decision
SELECT decision_id, pool, role, at, current, needed, recent_need, desired, held_by, reason, inputs,
       policy
FROM kalla.scaling_decisions WHERE decision_id = %(decision_id)s;

-- name: sweep
-- The needs of a pool are its own to forget, but a machine or container that is gone does not.
WITH needs AS (
    DELETE FROM kalla.scaling_needs WHERE at < kalla.clock() - make_interval(secs => %(seconds)s)
)
DELETE FROM kalla.scaling_decisions WHERE at < kalla.clock() - make_interval(secs => %(seconds)s);
