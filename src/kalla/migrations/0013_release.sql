-- The version that migrated this database last. A process of another series is refused.
CREATE TABLE kalla.release (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version     text NOT NULL,
    migrated_at timestamptz NOT NULL DEFAULT kalla.clock()
);
