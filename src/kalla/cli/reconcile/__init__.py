"""Commands around reconciliation: runs, recipes, sources, evidence."""
