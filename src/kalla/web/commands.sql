-- What a command with an Idempotency-Key answered the first time.

-- name: try_serialise
-- Of two requests with one key the second does not wait: it would hold a connection of the pool for
-- as long as the first one takes. It asks again, without one, until it finds the first one's answer.
SELECT pg_try_advisory_xact_lock(hashtextextended(%(caller)s::text || ' ' || %(key)s, 0)) AS got;

-- name: remembered
SELECT request, status, headers, body FROM kalla.idempotency
WHERE caller = %(caller)s AND key = %(key)s;

-- name: remember
INSERT INTO kalla.idempotency (caller, key, request, status, headers, body)
VALUES (%(caller)s, %(key)s, %(request)s, %(status)s, %(headers)s, %(body)s);

-- name: sweep
DELETE FROM kalla.idempotency WHERE created_at < kalla.clock() - make_interval(secs => %(seconds)s);
