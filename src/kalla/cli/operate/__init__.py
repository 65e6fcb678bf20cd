"""Commands for operators: work, workers, secrets, tokens."""
