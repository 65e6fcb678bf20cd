"""A match in several partitions: rows shuffled by key, one Spark task each."""
