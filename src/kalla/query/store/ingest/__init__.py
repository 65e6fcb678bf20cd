"""How samples come in: remote write, OpenMetrics text and Parquet files."""
