"""Evidence: written by a match; opened, searched, compared and told of afterwards."""
