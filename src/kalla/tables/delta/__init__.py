"""The Delta tables of dynamic tables: their log, and the fenced commit."""
