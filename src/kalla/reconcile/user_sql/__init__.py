"""Matches that a recipe finds with SQL of its own."""
