"""A class server: hand in by page or command, be rated within seconds, watch every match."""
