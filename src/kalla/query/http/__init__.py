"""The HTTP API of Prometheus and its remote write, on Kalla's engine and store."""
