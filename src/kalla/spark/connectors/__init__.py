"""Connectors: one small class a source. Who stages or reads direct knows only `connector`."""
