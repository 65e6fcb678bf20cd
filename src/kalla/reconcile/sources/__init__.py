"""Sources of rows: files and tables, inspected before a run and read in it."""
