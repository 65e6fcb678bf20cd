-- Statements about uploaded files.

-- name: add
INSERT INTO kalla.uploads (upload_id, file_name, url, bytes, created_by, expires_at)
VALUES (%(upload_id)s, %(file_name)s, %(url)s, %(bytes)s, %(by)s,
        kalla.clock() + make_interval(secs => %(seconds)s))
RETURNING *;

-- name: upload
-- What has expired is gone, though its file may wait for the sweep.
SELECT * FROM kalla.uploads WHERE upload_id = %(upload_id)s AND (expires_at IS NULL OR expires_at > kalla.clock());

-- name: locked
-- The same to change it: who saves it as a source at this moment is waited for, so that a source
-- never loses its file.
SELECT * FROM kalla.uploads WHERE upload_id = %(upload_id)s AND (expires_at IS NULL OR expires_at > kalla.clock()) FOR UPDATE;

-- name: current
SELECT * FROM kalla.uploads WHERE expires_at IS NULL OR expires_at > kalla.clock() ORDER BY created_at DESC LIMIT 500;

-- name: extend
-- The row is there before the file, so that a file never stays without one.
UPDATE kalla.uploads SET expires_at = kalla.clock() + make_interval(secs => %(seconds)s)
WHERE upload_id = %(upload_id)s RETURNING *;

-- name: keep
UPDATE kalla.uploads SET expires_at = NULL WHERE upload_id = %(upload_id)s RETURNING *;

-- name: expired
-- Skipping what another sweep holds: each file is removed once, and its row goes with it.
SELECT * FROM kalla.uploads WHERE expires_at <= kalla.clock()
ORDER BY expires_at LIMIT 100 FOR UPDATE SKIP LOCKED;

-- name: without_row
SELECT upload_id FROM unnest(%(ids)s::text[]) AS upload_id
WHERE NOT EXISTS (SELECT 1 FROM kalla.uploads u WHERE u.upload_id = upload_id.upload_id);

-- name: remove
DELETE FROM kalla.uploads WHERE upload_id = %(upload_id)s;
