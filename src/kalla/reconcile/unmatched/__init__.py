"""Unmatched rows: the nearest candidate of each, and why it did not match."""
