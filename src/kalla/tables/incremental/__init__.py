"""Incremental maintenance: updates a query's result without recomputing all of it."""
