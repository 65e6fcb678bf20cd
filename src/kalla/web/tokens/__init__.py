"""Authentication: tokens, their place in a request, and login links for browsers."""
