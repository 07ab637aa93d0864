"""Add-on: checks of clusters before a run, the verb ``doctor``, and trackers."""
