"""Numbered SQL files, applied in order by `kalla migrate`. A file that was released never changes."""
