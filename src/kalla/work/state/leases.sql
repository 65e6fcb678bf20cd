-- Statements about leases. `epoch` rises with every acquisition and is the fence of its holder.

-- name: lock_holder
-- A holder's own acquisitions happen one after another, so that its cap holds.
SELECT pg_advisory_xact_lock(hashtextextended('kalla.leases/' || %(holder)s, 0));

-- name: prepare
-- NOT EXISTS: an insert that conflicts would wait for whoever changes that slot at the moment.
INSERT INTO kalla.leases (resource, slot)
SELECT %(resource)s, number FROM generate_series(0, %(replicas)s - 1) AS number
WHERE NOT EXISTS (SELECT FROM kalla.leases WHERE resource = %(resource)s AND slot = number)
ON CONFLICT DO NOTHING;

-- name: acquire
-- The first free slot below `replicas`; trap 11: none above it is ever taken.
WITH moment AS MATERIALIZED (SELECT kalla.clock() AS now),
free AS MATERIALIZED (
    SELECT resource, slot FROM kalla.leases, moment
    WHERE resource = %(resource)s AND slot < %(replicas)s
      AND (holder IS NULL OR until <= moment.now)
      AND (%(cap)s::integer IS NULL OR (
          SELECT count(*) FROM kalla.leases mine
          WHERE mine.holder = %(holder)s AND mine.until > moment.now) < %(cap)s)
    ORDER BY slot
    LIMIT 1
    FOR UPDATE OF leases SKIP LOCKED
)
UPDATE kalla.leases
SET holder = %(holder)s, epoch = epoch + 1, until = moment.now + make_interval(secs => %(ttl)s)
FROM free, moment
WHERE leases.resource = free.resource AND leases.slot = free.slot
RETURNING leases.resource, leases.slot, epoch;

-- name: renew
-- A lease that expired is free, even if nobody took it yet: its holder must have stopped.
WITH moment AS MATERIALIZED (SELECT kalla.clock() AS now),
mine AS MATERIALIZED (
    SELECT leases.resource, leases.slot
    FROM kalla.leases
    JOIN unnest(%(resources)s::text[], %(slots)s::integer[], %(epochs)s::bigint[])
        AS held (resource, slot, epoch) USING (resource, slot, epoch), moment
    WHERE leases.holder = %(holder)s AND leases.until > moment.now
    ORDER BY leases.resource, leases.slot
    FOR NO KEY UPDATE OF leases
)
UPDATE kalla.leases
SET until = moment.now + make_interval(secs => %(ttl)s)
FROM mine, moment
WHERE leases.resource = mine.resource AND leases.slot = mine.slot
RETURNING leases.resource, leases.slot, leases.epoch;

-- name: release
-- Trap 9: the epoch says which holding is given up; a later holder's is left alone.
UPDATE kalla.leases SET holder = NULL, until = NULL
WHERE resource = %(resource)s AND slot = %(slot)s AND holder = %(holder)s AND epoch = %(epoch)s
RETURNING slot;

-- name: holds
-- For other transactions to write under this lease: until they end nobody acquires it (FOR UPDATE
-- waits for KEY SHARE), but its holder renews it (NO KEY UPDATE does not).
SELECT slot FROM kalla.leases
WHERE resource = %(resource)s AND slot = %(slot)s AND holder = %(holder)s AND epoch = %(epoch)s
  AND until > kalla.clock()
FOR KEY SHARE;

-- name: holders
SELECT resource, slot, epoch, holder, until, until > kalla.clock() AS live
FROM kalla.leases
WHERE holder IS NOT NULL AND (%(resource)s::text IS NULL OR resource = %(resource)s)
ORDER BY resource, slot;
