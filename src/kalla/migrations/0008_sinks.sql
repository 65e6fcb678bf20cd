-- Pipelines from Kafka into ClickHouse: what was asked for, and how far each partition has come.

CREATE TABLE kalla.pipelines (
    pipeline   text PRIMARY KEY,
    options    jsonb NOT NULL,        -- batch_rows, flush_seconds, rows_per_second, poison_percent
    guarantee  text NOT NULL,         -- what its tables allow to promise, a sentence
    created_at timestamptz NOT NULL DEFAULT kalla.clock(),
    created_by text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT kalla.clock(),
    changed_by text NOT NULL
);

CREATE TABLE kalla.kafka_configs (
    pipeline text PRIMARY KEY REFERENCES kalla.pipelines ON DELETE CASCADE,
    config   jsonb NOT NULL
);

CREATE TABLE kalla.clickhouse_configs (
    pipeline text PRIMARY KEY REFERENCES kalla.pipelines ON DELETE CASCADE,
    config   jsonb NOT NULL
);

-- How messages become rows. A version never changes: an intent and its token name the one they
-- were made with.
CREATE TABLE kalla.mappings (
    pipeline   text NOT NULL REFERENCES kalla.pipelines ON DELETE CASCADE,
    version    integer NOT NULL,
    columns    jsonb NOT NULL,
    filters    jsonb NOT NULL,
    tombstones text NOT NULL CHECK (tombstones IN ('skip', 'dead_letter')),
    created_at timestamptz NOT NULL DEFAULT kalla.clock(),
    created_by text NOT NULL,
    PRIMARY KEY (pipeline, version)
);

CREATE TABLE kalla.pipeline_state (
    pipeline text PRIMARY KEY REFERENCES kalla.pipelines ON DELETE CASCADE,
    desired  text NOT NULL DEFAULT 'stopped' CHECK (desired IN ('started', 'stopped')),
    replicas integer NOT NULL DEFAULT 1 CHECK (replicas >= 0),
    poisoned boolean NOT NULL DEFAULT false,  -- it stopped itself: too many dead letters
    trouble  text,        -- what keeps it from delivering now, a sentence
    trouble_at timestamptz,
    retry_at timestamptz  -- when it is tried again
);

-- How far each partition was delivered. Reading starts here, never from the group's offsets.
CREATE TABLE kalla.ledger (
    pipeline    text NOT NULL REFERENCES kalla.pipelines ON DELETE CASCADE,
    topic       text NOT NULL,
    partition   integer NOT NULL,
    topic_id    text NOT NULL,
    epoch       bigint NOT NULL DEFAULT 0,      -- the fence: raised when a member takes the partition
    generation  integer NOT NULL DEFAULT 0,     -- raised by a seek
    first_offset bigint NOT NULL,               -- where this generation begins
    next_offset bigint NOT NULL,
    stopped     text CHECK (stopped IN ('gap', 'topic_replaced', 'uncertain')),
    reason      text,                           -- of the stop, a sentence
    rows        bigint NOT NULL DEFAULT 0,
    dead        bigint NOT NULL DEFAULT 0,
    skipped     bigint NOT NULL DEFAULT 0,      -- tombstones
    filtered    bigint NOT NULL DEFAULT 0,
    newest_at   timestamptz,                    -- time of the newest message delivered
    committed_at timestamptz,
    intent_id   bigint,                         -- the range that is on its way; NULL: none
    intent_end  bigint,
    intent_mapping integer,
    intent_table   text,                        -- the table's UUID when the intent was written
    intent_deadline double precision,           -- by ClickHouse's clock: later, its insert is refused
    intent_at   timestamptz,
    slot        integer,                        -- who took it last; NULL: without leases
    worker      text,
    log_start   bigint,                         -- of Kafka's log, when its member last looked
    log_end     bigint,
    retention_ms bigint,                        -- of the topic; NULL: for ever
    log_at      timestamptz,
    PRIMARY KEY (pipeline, topic, partition),
    CHECK ((intent_id IS NULL) = (intent_end IS NULL)),
    CHECK (intent_end IS NULL OR intent_end > next_offset)
);
CREATE SEQUENCE kalla.intents;

-- What was delivered in each ten seconds of the last hour, for rates and charts.
CREATE TABLE kalla.pipeline_rates (
    pipeline  text NOT NULL REFERENCES kalla.pipelines ON DELETE CASCADE,
    partition integer NOT NULL,
    at        timestamptz NOT NULL,
    rows      bigint NOT NULL,
    dead      bigint NOT NULL,
    waiting   bigint NOT NULL,
    PRIMARY KEY (pipeline, at, partition)
);

-- Dead letters tried again with a newer mapping. The chunk that is on its way is named, so that
-- whoever recovers it asks ClickHouse about exactly these.
CREATE TABLE kalla.replays (
    replay     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline   text NOT NULL REFERENCES kalla.pipelines ON DELETE CASCADE,
    version    integer NOT NULL,                -- of the mapping
    reason     text NOT NULL DEFAULT '',        -- only letters with this reason; '': all
    field      text NOT NULL DEFAULT '',
    status     text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'completed')),
    cursor     jsonb NOT NULL DEFAULT '[-1, -1, -1]',  -- generation, partition, offset done last
    chunk      jsonb,                           -- the letters on their way; NULL: none
    deadline   double precision,                -- by ClickHouse's clock: later, its insert is refused
    rows       bigint NOT NULL DEFAULT 0,
    refused    bigint NOT NULL DEFAULT 0,       -- still no row: they stay dead letters
    created_at timestamptz NOT NULL DEFAULT kalla.clock(),
    created_by text NOT NULL,
    ended_at   timestamptz
);
CREATE UNIQUE INDEX replays_one_running ON kalla.replays (pipeline) WHERE status = 'running';

-- The last audit of each pipeline.
CREATE TABLE kalla.pipeline_audits (
    pipeline text PRIMARY KEY REFERENCES kalla.pipelines ON DELETE CASCADE,
    at       timestamptz NOT NULL DEFAULT kalla.clock(),
    result   jsonb NOT NULL
);

-- What happened to a pipeline, for its timeline.
CREATE TABLE kalla.pipeline_events (
    event_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline text NOT NULL REFERENCES kalla.pipelines ON DELETE CASCADE,
    at       timestamptz NOT NULL DEFAULT kalla.clock(),
    event    text NOT NULL,
    detail   text NOT NULL
);
CREATE INDEX pipeline_events_of ON kalla.pipeline_events (pipeline, event_id DESC);
