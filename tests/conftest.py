"""Puts this folder on the path, so that every test file can say ``from games import ...``."""
