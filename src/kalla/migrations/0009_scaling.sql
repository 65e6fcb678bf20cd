-- Scaling: how many workers each role needed of late, and what was decided.

-- Each look of the last hour. Scaling down waits until the highest need of a while has passed; the
-- page draws the rest.
CREATE TABLE kalla.scaling_needs (
    pool       text NOT NULL,  -- 'cluster', or the name of a machine that scales its own workers
    role       text NOT NULL,
    at         timestamptz NOT NULL,
    workers    integer NOT NULL,  -- that demand alone asked for
    demand     integer NOT NULL,
    current    integer NOT NULL,
    desired    integer NOT NULL,
    saturation real NOT NULL,     -- running jobs / places of the current workers
    PRIMARY KEY (pool, role, at)
);

-- Decisions that differ from the one before, with everything that led to them.
CREATE TABLE kalla.scaling_decisions (
    decision_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pool        text NOT NULL,
    role        text NOT NULL,
    at          timestamptz NOT NULL,
    current     integer NOT NULL,
    needed      integer NOT NULL,      -- by demand alone
    recent_need integer NOT NULL,      -- the highest need within the stabilisation window
    desired     integer NOT NULL,
    held_by     text,                  -- the limit that held the decision
    reason      text NOT NULL,
    inputs      jsonb NOT NULL,
    policy      jsonb NOT NULL
);
CREATE INDEX scaling_decisions_of_role ON kalla.scaling_decisions (pool, role, decision_id DESC);
CREATE INDEX scaling_decisions_at ON kalla.scaling_decisions (at);
