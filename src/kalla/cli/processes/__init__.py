"""Commands that start a process of Kalla, or look at its parts."""
