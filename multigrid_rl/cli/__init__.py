"""The command line: parse, load, call."""
