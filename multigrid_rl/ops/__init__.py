"""Add-on: clusters before a run, a tracker of other people."""
