"""What was delivered: the audit, dead letters, seeks."""
