"""Configurations: what they may say (schemas), what overrides stand for (recipes), how they are composed."""
