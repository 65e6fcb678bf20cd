"""Stores metrics: segments of samples in Parquet, and the catalogue that lists them."""
