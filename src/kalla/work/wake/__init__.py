"""Wake-ups for idle workers: one interface, two channels."""
