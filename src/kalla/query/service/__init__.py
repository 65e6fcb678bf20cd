"""Queries under way in one API process: what is asked, its time, and who carries it out."""
