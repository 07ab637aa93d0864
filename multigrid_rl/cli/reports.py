"""Verbs that write pages: ``report``."""
