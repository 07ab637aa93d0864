"""multigrid_rl: train, watch and judge RLlib PPO policies in the red/blue-door MultiGrid game."""

__version__ = "0.1.0"
