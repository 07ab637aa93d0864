"""A class server: submissions, a growing ladder, deadlines (docs/serve.md). Stands above `competition` and `show`."""
