-- Statements about tokens. A token itself is never here, only its SHA-256.

-- name: create
INSERT INTO kalla.tokens (name, role, hash, is_session, expires_at)
VALUES (%(name)s, %(role)s, %(hash)s, %(is_session)s,
        kalla.clock() + make_interval(secs => %(expires_seconds)s::double precision));

-- name: revoke_named
UPDATE kalla.tokens SET revoked_at = kalla.clock() WHERE name = %(name)s AND revoked_at IS NULL;

-- name: authenticate
-- last_used_at is looked at again on the locked row, so that of many requests at once one writes it.
WITH found AS MATERIALIZED (
    SELECT token_id, name, role FROM kalla.tokens
    WHERE hash = %(hash)s AND revoked_at IS NULL
      AND (expires_at IS NULL OR expires_at > kalla.clock())
),
used AS (
    UPDATE kalla.tokens SET last_used_at = kalla.clock()
    FROM found
    WHERE tokens.token_id = found.token_id
      AND (last_used_at IS NULL OR last_used_at < kalla.clock() - interval '1 minute')
)
SELECT token_id, name, role FROM found;

-- name: list
SELECT token_id, name, role, created_at, last_used_at, expires_at, revoked_at,
       revoked_at IS NULL AND (expires_at IS NULL OR expires_at > kalla.clock()) AS valid
FROM kalla.tokens ORDER BY token_id;

-- name: revoke
-- The first revocation's time stays.
UPDATE kalla.tokens SET revoked_at = coalesce(revoked_at, kalla.clock())
WHERE token_id = %(token_id)s
RETURNING token_id, name, role, created_at, last_used_at, expires_at, revoked_at, false AS valid;

-- name: end_session
-- A browser's own token alone: one that a person made is used elsewhere, too.
UPDATE kalla.tokens SET revoked_at = kalla.clock()
WHERE hash = %(hash)s AND is_session AND revoked_at IS NULL;
