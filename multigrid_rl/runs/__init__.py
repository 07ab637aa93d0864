"""The run folder and nothing else: its writer and its reader, checkpoints, verdict, provenance."""
