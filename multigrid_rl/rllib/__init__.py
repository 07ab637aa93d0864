"""The only RLlib room: env runner, algorithm, modules, callbacks, records, the training loop."""
