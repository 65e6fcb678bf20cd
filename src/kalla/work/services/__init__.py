"""The background services of workers and the API: one file each, each with one concern."""
