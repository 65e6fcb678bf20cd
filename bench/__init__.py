"""Benchmarks: ours and the peer's on the same data in the same run. See docs/benchmarks.md."""
