"""Trainers that learn from a replay buffer of all that was played."""
