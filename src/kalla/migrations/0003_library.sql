-- What runs refer to by name: secrets, sources, recipes and the destinations of callbacks.

CREATE TABLE kalla.secrets (
    name       text PRIMARY KEY,
    key_id     text NOT NULL,   -- of the key that opens it: a wrong one is told, not tried
    sealed     bytea NOT NULL,  -- nonce, ciphertext and tag of AES-256-GCM; the name is authenticated
    created_at timestamptz NOT NULL DEFAULT kalla.clock(),
    created_by text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT kalla.clock(),
    changed_by text NOT NULL
);

CREATE TABLE kalla.sources (
    name       text PRIMARY KEY,
    document   text NOT NULL,   -- YAML and not jsonb: numbers and dates of filters stay what they are
    created_at timestamptz NOT NULL DEFAULT kalla.clock(),
    created_by text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT kalla.clock(),
    changed_by text NOT NULL
);

-- A version never changes and is never removed: runs name the one they used.
CREATE TABLE kalla.recipes (
    recipe_id  text NOT NULL,
    version    integer NOT NULL CHECK (version >= 1),
    name       text NOT NULL,
    text       text NOT NULL,   -- as it was saved, comments included
    hash       text NOT NULL,   -- SHA-256 of the text
    created_at timestamptz NOT NULL DEFAULT kalla.clock(),
    created_by text NOT NULL,
    PRIMARY KEY (recipe_id, version)
);

CREATE TABLE kalla.destinations (
    name       text PRIMARY KEY,
    url        text NOT NULL,   -- callbacks go to this address and to those below it
    secret     text NOT NULL,   -- the name of the secret that signs them
    created_at timestamptz NOT NULL DEFAULT kalla.clock(),
    created_by text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT kalla.clock(),
    changed_by text NOT NULL
);
