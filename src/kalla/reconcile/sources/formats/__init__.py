"""File formats: how each is recognised and checked, and made readable where DuckDB needs help."""
