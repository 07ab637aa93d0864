"""Hyperparameter search on Ray Tune: spaces, plans, trials, results. A trial runs the training loop of ``train``."""
