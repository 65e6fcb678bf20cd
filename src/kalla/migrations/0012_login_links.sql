-- Links that log a browser in once. What it gets is a token of its own, which expires.
CREATE TABLE kalla.login_links (
    hash       bytea PRIMARY KEY,  -- SHA-256 of the code in the link
    name       text NOT NULL,
    role       text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    expires_at timestamptz NOT NULL
);

-- A browser's token is removed some time after it expired; those that people made stay listed.
ALTER TABLE kalla.tokens ADD COLUMN is_session boolean NOT NULL DEFAULT false;
