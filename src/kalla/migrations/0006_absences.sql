-- A job that waits for something that is away: since when, so that it does not wait for ever.

ALTER TABLE kalla.jobs ADD COLUMN away_since timestamptz;

ALTER TABLE kalla.attempts
    DROP CONSTRAINT attempts_ending_check,
    ADD CONSTRAINT attempts_ending_check CHECK (
        ending IN ('failed', 'lost', 'overran', 'handed back', 'put off', 'cancelled'));
