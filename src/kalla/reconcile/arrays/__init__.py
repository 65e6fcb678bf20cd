"""Columns as arrays and compiled loops over them; `array_path` is the way in for rules."""
