"""Runs PromQL test scripts (`load`, `eval`, expected) against Kalla's engine."""
