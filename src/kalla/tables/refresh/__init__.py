"""One refresh, from its job to its commit; also queries and audits."""
