"""The mathematics of training: rollouts, advantage estimates, losses, updates. Knows no Ray."""
