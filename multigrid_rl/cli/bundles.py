"""Verbs for bundles, what a student hands in: ``export`` and ``inspect``."""
