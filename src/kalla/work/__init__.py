"""Durable work: jobs, runs, leases. Only this room knows how work is claimed, kept and lost."""
