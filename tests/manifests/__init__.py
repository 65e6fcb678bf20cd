"""The lint of `deploy/`: rendered with the real tools, checked against the real schemas."""
