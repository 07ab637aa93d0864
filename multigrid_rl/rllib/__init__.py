"""The only RLlib room: env runners, algorithms, learner, Ray sessions and clusters, the training loop."""
