"""The state that every step of a match works on: loaded rows, their status, column arrays."""
