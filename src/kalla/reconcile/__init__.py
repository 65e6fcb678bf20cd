"""Reconciling two sources: recipes, matching, and evidence for every row."""
