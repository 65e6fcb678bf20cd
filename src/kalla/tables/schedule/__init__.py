"""When tables are refreshed, and why one is late."""
