"""The state of work in Postgres: jobs, runs, leases, queues, workers."""
