-- A role for Prometheus and other collectors: it writes metrics and may do nothing else.
ALTER TABLE kalla.tokens DROP CONSTRAINT tokens_role_check;
ALTER TABLE kalla.tokens ADD CONSTRAINT tokens_role_check
    CHECK (role IN ('metrics-writer', 'viewer', 'operator', 'admin'));
