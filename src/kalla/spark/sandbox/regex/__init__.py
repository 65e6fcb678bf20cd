"""How long a regular expression may search, and how often it may be tried."""
