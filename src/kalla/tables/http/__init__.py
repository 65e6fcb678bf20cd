"""REST and HTML of dynamic tables."""
