"""Files as DuckDB scans them: the SQL, its errors, column names and digests of files."""
