"""Judging runs: reference curves and how a run compares with them. No ray."""
