"""One refresh, from its job to its commit; queries and audits beside it."""
