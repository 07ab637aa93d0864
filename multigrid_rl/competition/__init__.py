"""Add-on: cups, grading, submissions of strangers, and their sandbox."""
