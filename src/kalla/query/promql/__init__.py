"""PromQL as a language: text to a typed syntax tree and back, with Prometheus' error texts."""
