"""The background duties of workers and the API: one file each, with nothing but its own concern."""
