"""Ingests samples: remote write, OpenMetrics text and Parquet files."""
