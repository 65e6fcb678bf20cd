"""Runs the queries of one API process: requests, time limits and their execution."""
