"""Trainers that learn from a replay buffer."""
