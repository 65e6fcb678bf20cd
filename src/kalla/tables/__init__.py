"""Dynamic tables: a query and how old its result may be; Kalla keeps the result in Delta."""
