"""Schedules refreshes, and explains late tables."""
