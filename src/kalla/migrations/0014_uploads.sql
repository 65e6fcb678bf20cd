-- Files that users send from a browser or a command: sources until they expire, or for good if saved.

CREATE TABLE kalla.uploads (
    upload_id  text PRIMARY KEY,     -- random; recipes name the file source://upload-ID
    file_name  text NOT NULL,        -- as the user calls it
    url        text NOT NULL,
    bytes      bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT kalla.clock(),
    created_by text NOT NULL,
    expires_at timestamptz           -- null once it is saved as a source
);

CREATE INDEX uploads_by_expiry ON kalla.uploads (expires_at);
