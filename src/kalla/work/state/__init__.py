"""What Postgres knows of work: jobs, runs, leases, queues, workers."""
