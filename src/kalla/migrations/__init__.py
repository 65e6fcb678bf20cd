"""Numbered SQL files, applied in order by `kalla migrate`. A released one never changes."""
