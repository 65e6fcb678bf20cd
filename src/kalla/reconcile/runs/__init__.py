"""Runs: submitted, carried out as jobs, followed, ended and shown."""
