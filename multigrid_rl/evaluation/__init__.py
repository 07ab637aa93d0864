"""Evaluation of exported policies, and comparison of runs over seeds, without Ray."""
