"""TPC-H as a workload for dynamic tables."""
