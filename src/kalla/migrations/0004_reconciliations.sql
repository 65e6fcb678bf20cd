-- Reconciliations: what a run was asked, and what came of it. They outlive kalla.runs and its jobs,
-- which are removed after a time; hence no foreign key, and an ending of their own.
CREATE TABLE kalla.reconciliations (
    run_id         bigint PRIMARY KEY,
    name           text NOT NULL,
    recipe_id      text NOT NULL,
    recipe_version integer,             -- null: evidence that was made elsewhere
    recipe_hash    text NOT NULL,
    recipe         text NOT NULL,       -- as it was run: parameters and sources filled in
    sources        jsonb NOT NULL,      -- the uri of each side
    submitted_by   text NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT kalla.clock(),
    callback       jsonb,               -- url, secret: whom to tell of the ending
    status         text NOT NULL DEFAULT 'running'
                   CHECK (status IN ('running', 'completed', 'failed', 'cancelled')),
    error          text,
    finished_at    timestamptz,         -- the ending that was concluded last
    tidy_at        timestamptz,         -- when what attempts left behind is to be removed
    evidence_url   text,
    report         jsonb
);
CREATE INDEX reconciliations_open ON kalla.reconciliations (run_id) WHERE finished_at IS NULL;
CREATE INDEX reconciliations_untidy ON kalla.reconciliations (tidy_at) WHERE tidy_at IS NOT NULL;
CREATE INDEX reconciliations_of_recipe ON kalla.reconciliations (recipe_id, run_id);
