"""Who asks: tokens, where a request carries one, and links that log a browser in."""
