"""From a syntax tree to leaves and evaluation nodes."""
