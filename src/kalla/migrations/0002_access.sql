-- Who may call the API, and what a POST with an Idempotency-Key answered the first time.

CREATE TABLE kalla.tokens (
    token_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text NOT NULL,
    role         text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    hash         bytea NOT NULL UNIQUE,  -- SHA-256 of 256 random bits
    created_at   timestamptz NOT NULL DEFAULT kalla.clock(),
    last_used_at timestamptz,
    expires_at   timestamptz,
    revoked_at   timestamptz
);

CREATE TABLE kalla.idempotency (
    key        text NOT NULL,
    caller     bigint NOT NULL,
    request    bytea NOT NULL,  -- SHA-256 of method, path and body
    status     smallint NOT NULL,
    headers    jsonb NOT NULL,
    body       bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT kalla.clock(),
    PRIMARY KEY (caller, key)
);
CREATE INDEX idempotency_age ON kalla.idempotency (created_at);
