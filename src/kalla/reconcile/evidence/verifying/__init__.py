"""Recomputes what evidence claims, with code that shares nothing with the writer."""
