"""Spark, where data work is placed."""
