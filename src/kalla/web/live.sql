-- name: clock
-- Pages count seconds by the database's clock, as everything else does.
SELECT kalla.clock() AS now;
