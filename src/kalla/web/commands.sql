-- What a command with an Idempotency-Key answered the first time.

-- name: serialise
-- Two requests with one key go one after the other; the second then finds the first one's answer.
SELECT pg_advisory_xact_lock(hashtextextended(%(caller)s::text || ' ' || %(key)s, 0));

-- name: remembered
SELECT request, status, headers, body FROM kalla.idempotency
WHERE caller = %(caller)s AND key = %(key)s;

-- name: remember
INSERT INTO kalla.idempotency (caller, key, request, status, headers, body)
VALUES (%(caller)s, %(key)s, %(request)s, %(status)s, %(headers)s, %(body)s);

-- name: sweep
DELETE FROM kalla.idempotency WHERE created_at < kalla.clock() - make_interval(secs => %(seconds)s);
