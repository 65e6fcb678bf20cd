"""What runs refer to by name: registered sources, saved recipes, destinations."""
