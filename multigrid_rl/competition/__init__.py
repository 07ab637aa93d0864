"""Add-on: cups, grading, what strangers hand in, and how it is contained."""
