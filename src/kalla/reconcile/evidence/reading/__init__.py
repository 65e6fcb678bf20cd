"""Reads the evidence of finished runs: pages, filters, exports, comparisons, reports."""
