"""Judging: exported policies and players play again; cups, grading, and sets of runs over seeds compared. No ray."""
