"""Nodes of the evaluation tree: binary operators, aggregations and functions."""
