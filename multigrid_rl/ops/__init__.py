"""Add-on: clusters before a run, the doctor, trackers of other people."""
