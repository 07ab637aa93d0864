"""Configurations: their schemas, recipes for scenarios, and composition from overrides."""
