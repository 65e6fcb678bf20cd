"""Simulates how policies scale workers over a day of jobs, without a cluster."""
