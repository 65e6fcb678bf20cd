-- name: one_moment
-- A page shows one moment: its parts, read one after another, must not contradict each other.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- name: clock
-- Pages count seconds by the database's clock, as everything else does.
SELECT kalla.clock() AS now;
