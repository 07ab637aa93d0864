"""The training loop, the stages of a run, what a run says of itself on the screen."""
