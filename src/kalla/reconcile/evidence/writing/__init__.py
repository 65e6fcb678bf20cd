"""Writes the evidence of a match."""
