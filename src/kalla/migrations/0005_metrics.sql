-- The metric store: which segments there are. What is not listed here does not exist for a query.
CREATE TABLE kalla.segments (
    segment_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shard       integer NOT NULL CHECK (shard >= 0),
    level       integer NOT NULL CHECK (level >= 0),  -- 0: as it was written
    min_time    bigint NOT NULL,                      -- of its samples, milliseconds
    max_time    bigint NOT NULL CHECK (max_time >= min_time),
    path        text NOT NULL,                        -- below the store's folder; several shards may share one
    row_group   integer NOT NULL DEFAULT 0,           -- the first of its row groups in the file
    row_groups  integer NOT NULL DEFAULT 1,
    rows        bigint NOT NULL,
    samples     bigint NOT NULL,
    bytes       bigint NOT NULL,
    checksum    text NOT NULL,                        -- of the whole file
    created_at  timestamptz NOT NULL DEFAULT kalla.clock(),
    replaced_at timestamptz                           -- not seen by new queries; removed after a time
);
CREATE INDEX segments_live ON kalla.segments (shard, min_time, max_time) WHERE replaced_at IS NULL;
CREATE INDEX segments_replaced ON kalla.segments (replaced_at) WHERE replaced_at IS NOT NULL;
CREATE INDEX segments_newest ON kalla.segments (max_time) WHERE replaced_at IS NULL;
CREATE INDEX segments_by_path ON kalla.segments (path);

-- What holds for the whole store, such as into how many shards series are spread.
CREATE TABLE kalla.metric_store (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    shards   integer NOT NULL CHECK (shards > 0),
    swept_at timestamptz  -- when objects that nobody lists were last looked for
);

-- What is told of metrics: type, help, unit.
CREATE TABLE kalla.metric_metadata (
    metric     text PRIMARY KEY,
    type       text NOT NULL,
    help       text NOT NULL,
    unit       text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT kalla.clock()
);
