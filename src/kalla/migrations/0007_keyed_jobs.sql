-- Who waits for a running key, in the order in which jobs are claimed: asked whenever one comes free.

CREATE INDEX jobs_keyed ON kalla.jobs (running_key, priority DESC, job_id)
    WHERE status = 'pending' AND due AND running_key IS NOT NULL;
