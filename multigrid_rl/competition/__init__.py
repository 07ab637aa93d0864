"""Add-on: cups, grading, hand-ins of strangers, and their sandbox."""
