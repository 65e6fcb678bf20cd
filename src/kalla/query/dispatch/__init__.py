"""The API side of query workers: streams to them, work units on them, artifacts from them."""
