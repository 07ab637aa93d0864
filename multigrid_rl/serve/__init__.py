"""A class server: hand-ins, a ladder that grows, deadlines (docs/serve.md). It plays by ``competition``."""
