-- Pipelines from Kafka into ClickHouse: what was asked for, and how far each partition has come.

CREATE TABLE kalla.pipelines (
    pipeline   text PRIMARY KEY,
    tombstones text NOT NULL,
    batch_rows integer NOT NULL CHECK (batch_rows > 0),
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

-- A version never changes: an intent names the one it was made with.
CREATE TABLE kalla.mappings (
    pipeline   text NOT NULL REFERENCES kalla.pipelines ON DELETE CASCADE,
    version    integer NOT NULL,
    columns    jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT kalla.clock(),
    created_by text NOT NULL,
    PRIMARY KEY (pipeline, version)
);

CREATE TABLE kalla.pipeline_state (
    pipeline text PRIMARY KEY REFERENCES kalla.pipelines ON DELETE CASCADE,
    desired  text NOT NULL DEFAULT 'stopped' CHECK (desired IN ('started', 'stopped')),
    replicas integer NOT NULL DEFAULT 1 CHECK (replicas >= 0),
    trouble  text,        -- what keeps it from delivering now, a sentence
    trouble_at timestamptz
);

-- How far each partition was delivered. Reading starts here, never from the group's offsets.
CREATE TABLE kalla.ledger (
    pipeline    text NOT NULL REFERENCES kalla.pipelines ON DELETE CASCADE,
    topic       text NOT NULL,
    partition   integer NOT NULL,
    topic_id    text NOT NULL,
    epoch       bigint NOT NULL DEFAULT 0,      -- the fence: raised when a member takes the partition
    generation  integer NOT NULL DEFAULT 0,     -- raised by a seek
    next_offset bigint NOT NULL,
    stopped     text CHECK (stopped IN ('gap', 'topic_replaced', 'uncertain')),
    reason      text,                           -- of the stop, a sentence
    rows        bigint NOT NULL DEFAULT 0,
    dead        bigint NOT NULL DEFAULT 0,
    skipped     bigint NOT NULL DEFAULT 0,
    newest_at   timestamptz,                    -- time of the newest message delivered
    committed_at timestamptz,
    intent_id   bigint,                         -- the range that is on its way; NULL: none
    intent_end  bigint,
    intent_mapping integer,
    intent_table   text,                        -- the table's UUID when the intent was written
    intent_deadline double precision,           -- by ClickHouse's clock: later, its insert is refused
    intent_at   timestamptz,
    PRIMARY KEY (pipeline, topic, partition),
    CHECK ((intent_id IS NULL) = (intent_end IS NULL)),
    CHECK (intent_end IS NULL OR intent_end > next_offset)
);
CREATE SEQUENCE kalla.intents;

-- What happened to a pipeline, for its timeline.
CREATE TABLE kalla.pipeline_events (
    event_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline text NOT NULL REFERENCES kalla.pipelines ON DELETE CASCADE,
    at       timestamptz NOT NULL DEFAULT kalla.clock(),
    event    text NOT NULL,
    detail   text NOT NULL
);
CREATE INDEX pipeline_events_of ON kalla.pipeline_events (pipeline, event_id DESC);
