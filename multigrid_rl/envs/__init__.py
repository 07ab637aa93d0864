"""Environments other than the red/blue-door game behind the same batched face, and agents grouped for training."""
