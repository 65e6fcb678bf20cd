"""PromQL over columns of samples: parse, plan into leaves, merge, evaluate."""
