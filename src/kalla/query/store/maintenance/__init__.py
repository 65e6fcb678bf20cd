"""Jobs that keep the metric store small: compaction and retention."""
