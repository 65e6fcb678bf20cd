"""From two sources to a first recipe: profiles, candidate keys, tolerances, and a trial match."""
