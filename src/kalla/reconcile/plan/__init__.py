"""The plan of a match: what is read from each side, and each rule as a kernel needs it."""
