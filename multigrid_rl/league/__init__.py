"""Add-on: pools of opponents that grow while a run trains, and best responses."""
