"""What clients of Prometheus see: its HTTP API and its way to write, over our engine and store."""
