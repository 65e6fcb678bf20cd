-- Dynamic tables: a tick of a mirror that is older than a request leaves the request.
ALTER TABLE kalla.dynamic_tables ADD COLUMN requested_at timestamptz;
