"""SQL expressions over one row or one pair of rows, and DuckDB's limits and errors."""
