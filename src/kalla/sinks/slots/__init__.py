"""Who carries a pipeline: slots by lease, group members, the process that delivers."""
