"""Hyperparameter search on Ray Tune: spaces, plans, trials, results. Each trial is the one training loop."""
