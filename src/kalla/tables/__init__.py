"""Dynamic tables: a query and the maximum age of its result; Kalla keeps the result in Delta."""
