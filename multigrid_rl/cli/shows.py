"""Verbs that show games and compare runs: ``video``, ``play``, ``compare``."""
