"""Runs: submitted, executed as jobs, monitored, completed and shown."""
