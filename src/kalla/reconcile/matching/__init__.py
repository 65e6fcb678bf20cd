"""Decides which rows match: pairs, groups, ambiguity."""
