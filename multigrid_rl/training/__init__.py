"""The training loop, the stages of a run, the lines of a run on the screen."""
