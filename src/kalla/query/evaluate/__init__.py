"""Evaluation of a plan: leaves on shards, merged parts, and a tree of nodes in blocks of steps."""
