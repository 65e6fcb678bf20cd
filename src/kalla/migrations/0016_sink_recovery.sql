-- Sinks: intents that are delivered in parts, generations that are never used again, and one error
-- for each slot.

-- Where the part ends that is tried now; NULL: the whole range is tried, as it was frozen.
ALTER TABLE kalla.ledger ADD COLUMN intent_part bigint;
ALTER TABLE kalla.ledger ADD CHECK (intent_part > next_offset AND intent_part <= intent_end);

-- The generations of pipelines that were removed: their rows and tokens are still in ClickHouse.
CREATE TABLE kalla.former_generations (
    topic      text NOT NULL,
    partition  integer NOT NULL,
    generation integer NOT NULL,
    PRIMARY KEY (topic, partition)
);

-- What keeps a slot from delivering. One that nobody renews was left by a worker that is gone.
CREATE TABLE kalla.slot_troubles (
    pipeline text NOT NULL REFERENCES kalla.pipelines ON DELETE CASCADE,
    instance text NOT NULL,  -- the slot; without leases the worker
    trouble  text NOT NULL,
    at       timestamptz NOT NULL DEFAULT kalla.clock(),
    retry_at timestamptz NOT NULL,
    PRIMARY KEY (pipeline, instance)
);

-- From here on only pipelines that stopped themselves have a trouble here. retry_at stays for workers
-- of the earlier version that still run.
UPDATE kalla.pipeline_state SET trouble = NULL, trouble_at = NULL WHERE NOT poisoned;

-- Settings that are refused from here on; in a stored pipeline they would make it unreadable.
UPDATE kalla.kafka_configs
SET config = jsonb_set(config, '{settings}',
    (config -> 'settings') - 'heartbeat.interval.ms' - 'max.poll.interval.ms')
WHERE config ? 'settings';
