"""Compiled loops over columns of samples: windows, quantiles, exact sums, digits of floats."""
