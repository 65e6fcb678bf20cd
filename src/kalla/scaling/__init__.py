"""Scaling: how many workers each role needs, by demand, policy and decisions."""
