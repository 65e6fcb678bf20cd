"""The parts of a match: values and conditions, pairs and groups, closest rows, buckets."""
