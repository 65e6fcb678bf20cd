-- Statements about login links. The code of a link is never here, only its SHA-256.

-- name: create
INSERT INTO kalla.login_links (hash, name, role, expires_at)
VALUES (%(hash)s, %(name)s, %(role)s,
        kalla.clock() + make_interval(secs => %(seconds)s::double precision));

-- name: use
-- Of two that come with one link at once, the row is deleted by one.
DELETE FROM kalla.login_links WHERE hash = %(hash)s AND expires_at > kalla.clock()
RETURNING name, role;

-- name: sweep_links
DELETE FROM kalla.login_links WHERE expires_at < kalla.clock();

-- name: sweep_sessions
DELETE FROM kalla.tokens
WHERE is_session AND expires_at < kalla.clock() - make_interval(secs => %(seconds)s);
