"""The query worker: executes work units, keeps segments, and serves artifacts."""
