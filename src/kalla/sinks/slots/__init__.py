"""Runs pipelines: slots by lease, group members, and delivering processes."""
