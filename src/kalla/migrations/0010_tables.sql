-- Dynamic tables: what they are, the ticks that pin their sources, and the history of refreshes.
CREATE TABLE kalla.table_sources (
    name       text PRIMARY KEY,
    location   text NOT NULL,         -- a folder; of a registered table, the name it is registered by
    format     text NOT NULL CHECK (format IN ('delta', 'parquet', 'csv', 'registered')),
    key        text[] NOT NULL DEFAULT '{}',  -- of a registered table
    watermark  text,                  -- a column that only grows; null: snapshots are compared
    mirror_job bigint,                -- the newest look at a registered table
    mirrored_at timestamptz,          -- its mirror has the rows of this moment, or newer ones
    changed_at timestamptz NOT NULL DEFAULT kalla.clock(),
    changed_by text NOT NULL
);

CREATE TABLE kalla.dynamic_tables (
    table_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text NOT NULL UNIQUE,
    definition   jsonb NOT NULL,      -- as the statement said it
    query        text NOT NULL,       -- as the sandbox wrote it
    hash         text NOT NULL,       -- of the query: rows of another one are no rows of this
    columns      text[] NOT NULL,
    reads        text[] NOT NULL,     -- sources and dynamic tables
    version      integer NOT NULL DEFAULT 1,
    state        text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'suspended')),
    state_reason text NOT NULL DEFAULT '',
    errors       integer NOT NULL DEFAULT 0,  -- query errors in a row
    frontier     jsonb,               -- the inputs that the rows stand for; null: never refreshed
    data_version bigint,              -- the Delta version that last changed a row
    delta_id     text,                -- of the Delta table
    data_time    timestamptz,         -- when the newest tick in the rows pinned its sources
    row_count    bigint,
    last_tick_at timestamptz,
    requested    text CHECK (requested IN ('refresh', 'full')),  -- by hand; the next tick takes it
    created_at   timestamptz NOT NULL DEFAULT kalla.clock(),
    changed_at   timestamptz NOT NULL DEFAULT kalla.clock(),
    changed_by   text NOT NULL
);

CREATE TABLE kalla.table_versions (
    table_id   bigint NOT NULL REFERENCES kalla.dynamic_tables ON DELETE CASCADE,
    version    integer NOT NULL,
    definition jsonb NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT kalla.clock(),
    applied_by text NOT NULL,
    PRIMARY KEY (table_id, version)
);

-- One moment of all base sources of a connected component.
CREATE TABLE kalla.ticks (
    tick_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pins      jsonb NOT NULL,
    pinned_at timestamptz NOT NULL DEFAULT kalla.clock(),
    closed_at timestamptz             -- null: some table is still to be refreshed
);
CREATE INDEX ticks_open ON kalla.ticks (tick_id) WHERE closed_at IS NULL;

CREATE TABLE kalla.tick_tables (
    tick_id      bigint NOT NULL REFERENCES kalla.ticks ON DELETE CASCADE,
    table_id     bigint NOT NULL REFERENCES kalla.dynamic_tables ON DELETE CASCADE,
    status       text NOT NULL DEFAULT 'waiting'
                 CHECK (status IN ('waiting', 'queued', 'done', 'failed', 'skipped')),
    forced       boolean NOT NULL DEFAULT false,
    data_version bigint,              -- what readers in this tick read
    job_id       bigint,
    PRIMARY KEY (tick_id, table_id)
);
CREATE INDEX tick_tables_of_table ON kalla.tick_tables (table_id);

CREATE TABLE kalla.refreshes (
    refresh_id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_id          bigint NOT NULL REFERENCES kalla.dynamic_tables ON DELETE CASCADE,
    tick_id           bigint NOT NULL,
    job_id            bigint NOT NULL,
    status            text NOT NULL CHECK (status IN ('completed', 'failed', 'skipped')),
    strategy          text NOT NULL,
    reason            text NOT NULL,
    predicted_seconds double precision,
    seconds           double precision,
    rows_deleted      bigint,
    rows_inserted     bigint,
    row_count         bigint,
    changed_rows      bigint,            -- of all inputs, about
    affected_keys     bigint,
    lag_seconds       double precision,  -- just before: how old the rows had become
    error             text,
    finished_at       timestamptz NOT NULL DEFAULT kalla.clock()
);
CREATE INDEX refreshes_of_table ON kalla.refreshes (table_id, refresh_id DESC);
