"""Evidence: written by a match; read, searched, compared and reported afterwards."""
