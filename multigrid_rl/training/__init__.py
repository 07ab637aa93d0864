"""The training loop, the stages of a run, how a run starts and resumes."""
