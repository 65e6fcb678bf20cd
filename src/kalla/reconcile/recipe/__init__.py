"""Recipes: how a document becomes one, and every problem it has, with its place."""
