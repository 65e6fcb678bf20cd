"""The two servers of a pipeline: reading Kafka, writing and checking ClickHouse."""
