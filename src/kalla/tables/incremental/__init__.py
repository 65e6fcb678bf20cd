"""How a query's result is kept up to date without recomputing all of it."""
