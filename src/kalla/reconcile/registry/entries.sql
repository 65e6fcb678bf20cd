-- Statements about registered sources, saved recipes and destinations of callbacks.

-- name: be_patient
-- Long recipes are read, and their sources looked at, inside the command's transaction, which is
-- idle meanwhile.
SET LOCAL idle_in_transaction_session_timeout = '60s';

-- name: add_source
INSERT INTO kalla.sources (name, document, created_by, changed_by)
VALUES (%(name)s, %(document)s, %(by)s, %(by)s)
ON CONFLICT (name) DO NOTHING
RETURNING *;

-- name: replace_source
INSERT INTO kalla.sources (name, document, created_by, changed_by)
VALUES (%(name)s, %(document)s, %(by)s, %(by)s)
ON CONFLICT (name) DO UPDATE
SET document = excluded.document, changed_at = kalla.clock(), changed_by = excluded.changed_by
RETURNING *;

-- name: sources
SELECT * FROM kalla.sources ORDER BY name;

-- name: source
SELECT * FROM kalla.sources WHERE name = %(name)s;

-- name: source_names
SELECT name FROM kalla.sources ORDER BY name;

-- name: current_uploads
SELECT upload_id, file_name, url FROM kalla.uploads
WHERE expires_at IS NULL OR expires_at > kalla.clock();

-- name: upload_as_source
SELECT 'upload-' || upload_id AS name, url, created_at, created_by,
       created_at AS changed_at, created_by AS changed_by
FROM kalla.uploads
WHERE 'upload-' || upload_id = %(name)s AND (expires_at IS NULL OR expires_at > kalla.clock());

-- name: secret_names
SELECT name FROM kalla.secrets ORDER BY name;

-- name: remove_source
DELETE FROM kalla.sources WHERE name = %(name)s RETURNING *;

-- name: release_uploads
-- Files that no source names any more; a run that reads one has a day to end.
-- Trap: a document may write a url in several ways, but not the id in it.
UPDATE kalla.uploads u SET expires_at = kalla.clock() + interval '1 day'
WHERE expires_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM kalla.sources s WHERE strpos(s.document, u.upload_id) > 0);

-- name: serialise_recipe
-- Two savings of one recipe take turns: both would see the same latest version.
SELECT pg_advisory_xact_lock(hashtextextended('kalla recipe ' || %(recipe_id)s, 0));

-- name: add_recipe
INSERT INTO kalla.recipes (recipe_id, version, name, text, hash, created_by)
VALUES (%(recipe_id)s, %(version)s, %(name)s, %(text)s, %(hash)s, %(by)s)
RETURNING *;

-- name: latest_recipe
SELECT * FROM kalla.recipes WHERE recipe_id = %(recipe_id)s ORDER BY version DESC LIMIT 1;

-- name: recipe
SELECT * FROM kalla.recipes WHERE recipe_id = %(recipe_id)s AND version = %(version)s;

-- name: recipes
-- The latest version of each, without its text.
SELECT DISTINCT ON (recipe_id) recipe_id, version, name, hash, created_at, created_by
FROM kalla.recipes
WHERE %(after)s::text IS NULL OR recipe_id > %(after)s
ORDER BY recipe_id, version DESC
LIMIT %(limit)s;

-- name: recipe_names
SELECT DISTINCT recipe_id FROM kalla.recipes ORDER BY recipe_id LIMIT 1000;

-- name: schedules_of
SELECT count(*) AS schedules FROM kalla.schedules WHERE recipe_id = %(recipe_id)s;

-- name: recipe_versions
SELECT recipe_id, version, name, hash, created_at, created_by
FROM kalla.recipes WHERE recipe_id = %(recipe_id)s ORDER BY version DESC LIMIT 500;

-- name: add_destination
INSERT INTO kalla.destinations (name, url, secret, created_by, changed_by)
VALUES (%(name)s, %(url)s, %(secret)s, %(by)s, %(by)s)
ON CONFLICT (name) DO NOTHING
RETURNING *;

-- name: replace_destination
INSERT INTO kalla.destinations (name, url, secret, created_by, changed_by)
VALUES (%(name)s, %(url)s, %(secret)s, %(by)s, %(by)s)
ON CONFLICT (name) DO UPDATE
SET url = excluded.url, secret = excluded.secret,
    changed_at = kalla.clock(), changed_by = excluded.changed_by
RETURNING *;

-- name: destinations
SELECT * FROM kalla.destinations ORDER BY name;

-- name: remove_destination
DELETE FROM kalla.destinations WHERE name = %(name)s RETURNING *;
