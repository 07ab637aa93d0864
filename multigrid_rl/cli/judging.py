"""Verbs that judge players by play: ``evaluate``, ``cup``, ``grade``."""
