-- name: put
INSERT INTO kalla.secrets (name, key_id, sealed, created_by, changed_by)
VALUES (%(name)s, %(key_id)s, %(sealed)s, %(by)s, %(by)s)
ON CONFLICT (name) DO UPDATE
SET key_id = excluded.key_id, sealed = excluded.sealed,
    changed_at = kalla.clock(), changed_by = excluded.changed_by;

-- name: get
SELECT key_id, sealed FROM kalla.secrets WHERE name = %(name)s;

-- name: listing
SELECT name, key_id, created_at, created_by, changed_at, changed_by
FROM kalla.secrets ORDER BY name;

-- name: remove
DELETE FROM kalla.secrets WHERE name = %(name)s RETURNING name;
