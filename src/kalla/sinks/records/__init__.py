"""Records of delivery: the audit, dead letters, replays and seeks."""
