-- Recipes that are run at certain times, and what became of each time.

CREATE TABLE kalla.schedules (
    schedule_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    recipe_id    text NOT NULL,           -- its latest version is run
    cron         text NOT NULL,
    time_zone    text NOT NULL,           -- whose clock the cron expression speaks of
    missed       text NOT NULL CHECK (missed IN ('once', 'skip')),
    notify_url   text,                    -- below a registered destination
    notify_above bigint,                  -- exceptions up to this many are no news
    is_paused    boolean NOT NULL DEFAULT false,
    next_at      timestamptz NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT kalla.clock(),
    created_by   text NOT NULL
);

CREATE INDEX schedules_due ON kalla.schedules (next_at) WHERE NOT is_paused;

-- A time is dealt with once: who comes second finds its row.
CREATE TABLE kalla.schedule_times (
    schedule_id bigint NOT NULL REFERENCES kalla.schedules ON DELETE CASCADE,
    due_at      timestamptz NOT NULL,
    handled_at  timestamptz NOT NULL DEFAULT kalla.clock(),
    run_id      bigint,                   -- null where no run was started
    note        text,                     -- why not, or which times it stands for
    PRIMARY KEY (schedule_id, due_at)
);
