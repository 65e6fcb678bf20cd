"""Commands around sinks."""
