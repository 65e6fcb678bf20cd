"""Kafka into ClickHouse: slots held by lease, every message delivered exactly once."""
