"""Label sets, and label sets by number."""
