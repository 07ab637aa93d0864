"""A class server: hand-ins, a ladder that grows, deadlines (docs/serve.md). Stands above `competition` and `show`."""
